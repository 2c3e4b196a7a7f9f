output "launch_template_ids" {
  description = "The launch template of each pool."
  value       = { for name, template in aws_launch_template.pool : name => template.id }
}

output "reservation_ids" {
  description = "Capacity reservations that pools use."
  value       = distinct(compact([for pool in values(var.pools) : pool.reservation_id]))
}
