# A region. Each one has a folder with its own values and its own state; this file, the variables and the outputs are the
# same for all (../main.tf, ../variables.tf, ../outputs.tf).

terraform {
  required_version = ">= 1.10"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "6.25.0"
    }
  }

  # The bucket and its key are given at init (-backend-config), since they exist before this state does.
  backend "s3" {
    encrypt      = true
    use_lockfile = true
  }
}

provider "aws" {
  region = var.region

  default_tags {
    tags = merge(var.tags, { project = "raylane", cluster = local.name })
  }
}

locals {
  name = "raylane-${var.region}"
}

# Our cells have the same machines and the same time-outs everywhere.
module "region" {
  source = "../../modules/region"

  name               = local.name
  cidr_block         = var.cidr_block
  availability_zones = var.availability_zones
  elb_log_account_id = var.elb_log_account_id
  certificate_arn    = var.certificate_arn
  client_cidrs       = var.client_cidrs
  operator_cidrs     = var.operator_cidrs
  repository_arns    = var.repository_arns
  nat_gateway        = var.nat_gateway
  peer_networks      = var.peer_networks
  key_name           = var.key_name
  alarm_topic_arns   = var.alarm_topic_arns
  tags               = var.tags
  public             = true
  peers              = true

  gateway = {
    port    = 8000
    total_s = 900
    drain_s = 30
  }

  pools = {
    head = {
      kind          = "head"
      instance_type = "m7i.2xlarge"
      image_id      = var.cpu_image_id
    }
    gateways = {
      kind          = "gateway"
      instance_type = "c7i.2xlarge"
      image_id      = var.cpu_image_id
    }
    l40s = {
      kind           = "worker"
      instance_type  = "g6e.12xlarge"
      image_id       = var.gpu_image_id
      reservation_id = var.l40s_reservation_id
      disk_gib       = 500
      disk_mib_per_s = 750
    }
    l40s-spot = {
      kind           = "worker"
      instance_type  = "g6e.12xlarge"
      image_id       = var.gpu_image_id
      market         = "spot"
      disk_gib       = 500
      disk_mib_per_s = 750
    }
  }
}
