# Everything that one region's cell stands on. A second region is a second call of this module, unchanged.

module "key" {
  source = "../key"

  name = var.name
  spot = anytrue([for pool in values(var.pools) : pool.market == "spot"])

  auto_scaling = var.key_name != null
}

module "artifacts" {
  source = "../artifacts"

  name               = var.name
  key_arn            = module.key.arn
  elb_log_account_id = var.elb_log_account_id
}

module "secrets" {
  source = "../secrets"

  name    = var.name
  key_arn = module.key.arn
}

module "network" {
  source = "../network"

  name               = var.name
  key_arn            = module.key.arn
  cidr_block         = var.cidr_block
  availability_zones = var.availability_zones
  public_subnets     = var.public
  nat_gateway        = var.nat_gateway
  peer_networks      = var.peer_networks
  bucket_arns        = [module.artifacts.bucket_arn]
}

module "security" {
  source = "../security"

  name                        = var.name
  vpc_id                      = module.network.vpc_id
  endpoints_security_group_id = module.network.endpoints_security_group_id
  s3_prefix_list_id           = module.network.s3_prefix_list_id
  gateway_port                = var.gateway.port
  client_cidrs                = var.client_cidrs
  operator_cidrs              = var.operator_cidrs
  internet                    = var.nat_gateway
  peer_networks               = var.peer_networks
}

module "endpoint" {
  source = "../endpoint"

  name                = var.name
  vpc_id              = module.network.vpc_id
  public              = var.public
  subnet_ids          = var.public ? module.network.public_subnet_ids : module.network.private_subnet_ids
  security_group_id   = module.security.endpoint_security_group_id
  certificate_arn     = var.certificate_arn
  log_bucket          = module.artifacts.log_bucket
  gateway             = var.gateway
  peers               = var.peers
  deletion_protection = var.deletion_protection
  web_acl_arn         = var.web_acl_arn
}

module "iam" {
  source = "../iam"

  name             = var.name
  cluster          = var.name
  key_arn          = module.key.arn
  bucket_arn       = module.artifacts.bucket_arn
  artifact_prefix  = var.artifact_prefix
  secret_arn       = module.secrets.arn
  repository_arns  = var.repository_arns
  target_group_arn = module.endpoint.target_group_arn
  subnet_ids       = module.network.private_subnet_ids
  reservation_ids  = module.capacity.reservation_ids
  keeps_head       = var.key_name != null
  head_volume_id   = module.capacity.head_volume_id
  security_group_ids = distinct(concat(
    module.security.security_group_ids.gateway,
    module.security.security_group_ids.worker,
  ))
}

module "capacity" {
  source = "../capacity"

  name                  = var.name
  cluster               = var.name
  key_arn               = module.key.arn
  instance_profile_arns = module.iam.instance_profile_arns
  target_group_arn      = module.endpoint.target_group_arn
  pools                 = var.pools
  security_group_ids    = module.security.security_group_ids
  key_name              = var.key_name
  ssh_user              = var.ssh_user
  tags                  = var.tags
  head_address = var.key_name == null ? null : {
    subnet_id         = module.network.private_subnet_ids[0]
    availability_zone = var.availability_zones[0]
  }
}
