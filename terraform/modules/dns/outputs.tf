output "endpoints" {
  description = "For the spec: regions[].endpoint by the region's name."
  value       = { for name, region in var.regions : name => "https://${region.endpoint}" }
}

output "base_url" {
  description = "For clients that know one name only."
  value       = "https://${var.name}/v1"
}

output "failover_s" {
  description = "After so many seconds a client that obeys the TTL is sent to another region: until the checks have failed, and the TTL."
  value       = local.check_interval_s * local.failures + local.ttl_s
}
