# An example region; ../us-east-1 is a second one. For a third one, copy the folder and change the values: the modules
# stay as they are. Variables and outputs are those of ../variables.tf and ../outputs.tf.

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

module "cell" {
  source = "../../modules/cell"

  name                = local.name
  cidr_block          = "10.40.0.0/16"
  availability_zones  = ["eu-central-1a", "eu-central-1b", "eu-central-1c"]
  elb_log_account_id  = "054676820928" # AWS's, for eu-central-1
  certificate_arn     = var.certificate_arn
  client_cidrs        = var.client_cidrs
  operator_cidrs      = var.operator_cidrs
  cpu_image_id        = var.cpu_image_id
  gpu_image_id        = var.gpu_image_id
  l40s_reservation_id = var.l40s_reservation_id
  repository_arns     = var.repository_arns
}
