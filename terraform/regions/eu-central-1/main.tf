# An example region; ../us-east-1 is a second one. They differ in values only: the modules stay as they are.

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
  region = "eu-central-1"

  default_tags {
    tags = {
      project = "raylane"
      cluster = local.name
    }
  }
}

locals {
  name = "raylane-eu-central-1"
}

module "region" {
  source = "../../modules/region"

  name               = local.name
  cidr_block         = "10.40.0.0/16"
  availability_zones = ["eu-central-1a", "eu-central-1b", "eu-central-1c"]
  public             = true
  client_cidrs       = var.client_cidrs
  operator_cidrs     = var.operator_cidrs
  certificate_arn    = var.certificate_arn
  repository_arns    = var.repository_arns
  peers              = true
  elb_log_account_id = "054676820928" # AWS's, for eu-central-1

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
