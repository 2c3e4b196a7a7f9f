# The names of all regions, by Route 53. Route 53 is no part of any region: this is applied on its own, after the regions.

terraform {
  required_version = ">= 1.10"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "6.25.0"
    }
  }

  # Keep this state in a region other than the largest one's: it is what changes when a region is gone.
  backend "s3" {
    encrypt      = true
    use_lockfile = true
  }
}

provider "aws" {
  region = "eu-west-1"

  default_tags {
    tags = {
      project = "raylane"
    }
  }
}

module "dns" {
  source = "../../modules/dns"

  zone_id = var.zone_id
  name    = var.name
  regions = {
    for region, endpoint in var.endpoints : region => {
      endpoint   = "${region}.${var.name}"
      dns_name   = endpoint.name
      zone_id    = endpoint.zone_id
      aws_region = region
      public     = endpoint.public
    }
  }
}
