output "raylane" {
  description = "`terraform output -json > outputs.json`, then `raylane spec from-terraform outputs.json`."
  value       = module.region.raylane
}

output "endpoint" {
  description = "Where the endpoint's DNS record points to: the load balancer's name and zone."
  value       = { name = module.region.raylane.endpoint, zone_id = module.region.zone_id }
}
