output "security_group_ids" {
  description = "The security groups of each kind of node: head, gateway, worker."
  value = {
    head    = [aws_security_group.nodes.id, aws_security_group.head.id]
    gateway = [aws_security_group.nodes.id, aws_security_group.gateways.id]
    worker  = [aws_security_group.nodes.id]
  }
}

output "endpoint_security_group_id" {
  description = "The load balancer's."
  value       = aws_security_group.endpoint.id
}
