output "raylane" {
  description = "`terraform output -json > outputs.json`, then `raylane spec from-terraform outputs.json`."
  value       = module.region.raylane
}

output "endpoint" {
  description = "For ../global/dns: where the endpoint's DNS record points to."
  value       = { name = module.region.raylane.endpoint, zone_id = module.region.zone_id }
}

output "nat_cidrs" {
  description = "For the other regions' peer_networks, where their client_cidrs is not everybody."
  value       = module.region.nat_cidrs
}
