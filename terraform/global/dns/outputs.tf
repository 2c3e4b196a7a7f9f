output "endpoints" {
  description = "For the spec: regions[].endpoint."
  value       = module.dns.endpoints
}

output "base_url" {
  description = "For clients that know one name only."
  value       = module.dns.base_url
}

output "failover_s" {
  description = "After so many seconds a client that obeys the TTL is sent to another region."
  value       = module.dns.failover_s
}
