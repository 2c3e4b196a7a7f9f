output "dns_name" {
  description = "The load balancer's name; the endpoint's own DNS record points to it."
  value       = aws_lb.this.dns_name
}

output "zone_id" {
  description = "The zone of that name, for an alias record in Route 53."
  value       = aws_lb.this.zone_id
}

output "target_group_arn" {
  description = "The target group that gateways join."
  value       = aws_lb_target_group.gateways.arn
}

output "idle_timeout_s" {
  description = "After so many seconds without a byte the load balancer closes a connection."
  value       = local.idle_timeout_s
}

output "gateway" {
  description = "What the spec's gateway section must say to fit: gateway.port, gateway.drain_s, gateway.lame_duck_s, and of gateway.timeouts total_s and keep_alive_s."
  value = {
    port         = var.gateway.port
    drain_s      = var.gateway.drain_s
    lame_duck_s  = local.lame_duck_s
    total_s      = var.gateway.total_s
    keep_alive_s = local.keep_alive_s
  }
}

output "arn_suffix" {
  description = "The load balancer, as its metrics name it."
  value       = aws_lb.this.arn_suffix
}

output "target_group_arn_suffix" {
  description = "The target group, as its metrics name it."
  value       = aws_lb_target_group.gateways.arn_suffix
}
