output "role_arns" {
  description = "The role of each kind of node: head, gateway, worker."
  value       = { for kind, role in aws_iam_role.node : kind => role.arn }
}

output "instance_profile_arns" {
  description = "The instance profile of each kind of node."
  value       = { for kind, profile in aws_iam_instance_profile.node : kind => profile.arn }
}
