# What AWS would answer, for the tests of regions.

mock_data "aws_region" {
  defaults = { region = "eu-central-1" }
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
  defaults = { arn = "arn:aws:elasticloadbalancing:eu-central-1:123456789012:targetgroup/mock/0123456789abcdef" }
}

mock_resource "aws_lb" {
  defaults = { dns_name = "mock-1234567890.eu-central-1.elb.amazonaws.com", zone_id = "Z215JYRZR1TBD5" }
}

mock_resource "aws_s3_bucket" {
  defaults = { id = "mock-artifacts-123456789012", arn = "arn:aws:s3:::mock-artifacts-123456789012" }
}

mock_resource "aws_kms_key" {
  defaults = { arn = "arn:aws:kms:eu-central-1:123456789012:key/00000000-0000-0000-0000-000000000000" }
}

mock_resource "aws_secretsmanager_secret" {
  defaults = { arn = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:mock-AbCdEf" }
}

mock_resource "aws_eip" {
  defaults = { public_ip = "203.0.113.10" }
}
