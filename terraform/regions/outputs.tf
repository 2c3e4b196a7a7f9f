output "raylane" {
  description = "`terraform output -json > outputs.json`, then `raylane spec from-terraform outputs.json`."
  value       = module.cell.raylane
}

output "endpoint" {
  description = "For ../global/dns: where the endpoint's DNS record points to."
  value       = module.cell.endpoint
}
