output "vpc_id" {
  description = "The VPC."
  value       = aws_vpc.this.id
}

output "private_subnet_ids" {
  description = "Private subnets, in the order of availability_zones."
  value       = [for zone in var.availability_zones : aws_subnet.private[zone].id]
}

output "zone_subnet_ids" {
  description = "The private subnets of each availability zone."
  value       = { for zone in var.availability_zones : zone => [aws_subnet.private[zone].id] }
}

output "public_subnet_ids" {
  description = "Public subnets, in the order of availability_zones; none without public_subnets and nat_gateway."
  value       = [for zone in var.availability_zones : aws_subnet.public[zone].id if contains(keys(aws_subnet.public), zone)]
}

output "endpoints_security_group_id" {
  description = "The security group of the interface endpoints."
  value       = aws_security_group.endpoints.id
}

output "s3_prefix_list_id" {
  description = "S3's addresses, as the gateway endpoint routes them."
  value       = aws_vpc_endpoint.s3.prefix_list_id
}

output "nat_cidrs" {
  description = "The public addresses from which nodes come: for other regions' peer_networks."
  value       = [for address in aws_eip.nat : "${address.public_ip}/32"]
}
