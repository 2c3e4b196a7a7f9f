output "launch_template_ids" {
  description = "The launch template of each pool."
  value       = { for name, template in aws_launch_template.pool : name => template.id }
}

output "reservation_ids" {
  description = "Capacity reservations that pools use."
  value       = distinct(compact([for pool in values(var.pools) : pool.reservation_id]))
}

output "head_group" {
  description = "The Auto Scaling group that keeps the head; null without one."
  value       = one(aws_autoscaling_group.head[*].name)
}

output "head_volume_id" {
  description = "The disk with the head's state; null without a group."
  value       = one(aws_ebs_volume.head[*].id)
}
