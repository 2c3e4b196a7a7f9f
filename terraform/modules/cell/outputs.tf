output "raylane" {
  description = "What `raylane spec from-terraform` writes into the spec."
  value       = module.region.raylane
}

output "endpoint" {
  description = "The load balancer's name and zone, for the endpoint's DNS record."
  value       = { name = module.region.raylane.endpoint, zone_id = module.region.zone_id }
}
