data "aws_region" "current" {}

output "raylane" {
  description = "What `raylane spec from-terraform` writes into the spec."
  value = {
    cluster          = var.name
    region           = data.aws_region.current.region
    subnet_ids       = module.network.private_subnet_ids
    zone_subnet_ids  = module.network.zone_subnet_ids
    secret           = module.secrets.name
    head_group       = module.capacity.head_group
    key_name         = var.key_name
    ssm              = length(var.operator_cidrs) == 0
    artifacts        = "s3://${module.artifacts.bucket}/${var.artifact_prefix}"
    endpoint         = module.endpoint.dns_name
    target_group_arn = module.endpoint.target_group_arn
    gateway          = module.endpoint.gateway
    pools = {
      for name, pool in var.pools : name => {
        kind               = pool.kind
        instance_type      = pool.instance_type
        image              = pool.image_id
        spot               = pool.market == "spot"
        reservation        = pool.reservation_id
        launch_template    = module.capacity.launch_template_ids[name]
        instance_profile   = module.iam.instance_profile_arns[pool.kind]
        security_group_ids = module.security.security_group_ids[pool.kind]
      }
    }
  }
}

output "zone_id" {
  description = "The zone of the endpoint's name, for an alias record."
  value       = module.endpoint.zone_id
}

output "nat_cidrs" {
  description = "Addresses from which this region's gateways reach public endpoints: for other regions' peer_networks."
  value       = module.network.nat_cidrs
}
