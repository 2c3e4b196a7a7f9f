# `terraform test` plans and applies the region against mocks: every expression is evaluated, and nothing is created.

mock_provider "aws" {
  mock_data "aws_region" {
    defaults = { region = "us-east-1" }
  }
  mock_data "aws_caller_identity" {
    defaults = { account_id = "123456789012" }
  }
  mock_data "aws_partition" {
    defaults = { partition = "aws" }
  }
  mock_resource "aws_subnet" {
    defaults = { id = "subnet-0123456789abcdef0" }
  }
  mock_resource "aws_launch_template" {
    defaults = { id = "lt-0123456789abcdef0" }
  }
  mock_resource "aws_lb_target_group" {
    defaults = { arn = "arn:aws:elasticloadbalancing:us-east-1:123456789012:targetgroup/mock/0123456789abcdef" }
  }
  mock_resource "aws_lb" {
    defaults = { dns_name = "mock-1234567890.us-east-1.elb.amazonaws.com", zone_id = "Z35SXDOTRQ7X7K" }
  }
  mock_resource "aws_s3_bucket" {
    defaults = { id = "mock-artifacts-123456789012", arn = "arn:aws:s3:::mock-artifacts-123456789012" }
  }
  mock_resource "aws_kms_key" {
    defaults = { arn = "arn:aws:kms:us-east-1:123456789012:key/00000000-0000-0000-0000-000000000000" }
  }
  mock_resource "aws_secretsmanager_secret" {
    defaults = { arn = "arn:aws:secretsmanager:us-east-1:123456789012:secret:mock-AbCdEf" }
  }
}

override_resource {
  target = module.region.module.security.aws_security_group.nodes
  values = { id = "sg-11111111111111111" }
}

override_resource {
  target = module.region.module.security.aws_security_group.head
  values = { id = "sg-22222222222222222" }
}

override_resource {
  target = module.region.module.security.aws_security_group.gateways
  values = { id = "sg-33333333333333333" }
}

override_resource {
  target = module.region.module.security.aws_security_group.endpoint
  values = { id = "sg-44444444444444444" }
}

override_resource {
  target = module.region.module.iam.aws_iam_instance_profile.node["head"]
  values = { arn = "arn:aws:iam::123456789012:instance-profile/raylane-us-east-1-head" }
}

override_resource {
  target = module.region.module.iam.aws_iam_instance_profile.node["gateway"]
  values = { arn = "arn:aws:iam::123456789012:instance-profile/raylane-us-east-1-gateway" }
}

override_resource {
  target = module.region.module.iam.aws_iam_instance_profile.node["worker"]
  values = { arn = "arn:aws:iam::123456789012:instance-profile/raylane-us-east-1-worker" }
}

variables {
  certificate_arn     = "arn:aws:acm:us-east-1:123456789012:certificate/00000000-0000-0000-0000-000000000000"
  client_cidrs        = ["0.0.0.0/0"]
  operator_cidrs      = ["10.0.0.0/16"]
  cpu_image_id        = "ami-0123456789abcdef0"
  gpu_image_id        = "ami-0fedcba9876543210"
  l40s_reservation_id = "cr-0123456789abcdef0"
  repository_arns     = ["arn:aws:ecr:us-east-1:123456789012:repository/raylane"]
}

run "whole_region" {
  command = apply
}
