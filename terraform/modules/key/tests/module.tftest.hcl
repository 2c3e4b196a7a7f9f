mock_provider "aws" {
  mock_data "aws_region" {
    defaults = { region = "eu-central-1" }
  }
  mock_data "aws_caller_identity" {
    defaults = { account_id = "123456789012" }
  }
  mock_data "aws_partition" {
    defaults = { partition = "aws" }
  }
}

variables {
  name = "cell-a"
}

run "who_may_use_the_key" {
  assert {
    condition     = jsonencode([for one in jsondecode(aws_kms_key.this.policy).Statement : one.Principal]) == jsonencode([{ AWS = "arn:aws:iam::123456789012:root" }, { Service = "logs.eu-central-1.amazonaws.com" }])
    error_message = "The account by IAM, and the flow logs."
  }
  assert {
    condition     = aws_kms_key.this.enable_key_rotation
    error_message = "The key is renewed every year."
  }
}

run "spot_instances_need_it_too" {
  variables {
    spot = true
  }
  assert {
    condition     = length([for one in jsondecode(aws_kms_key.this.policy).Statement : one if try(endswith(one.Principal.AWS, ":role/aws-service-role/spot.amazonaws.com/AWSServiceRoleForEC2Spot"), false)]) == 2
    error_message = "EC2's role for spot instances may use the key."
  }
}

run "so_does_an_auto_scaling_group" {
  variables {
    auto_scaling = true
  }
  assert {
    condition     = [for one in jsondecode(aws_kms_key.this.policy).Statement : one.Sid if try(endswith(one.Principal.AWS, ":role/aws-service-role/autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling"), false)] == ["DisksAWSServiceRoleForAutoScaling", "GrantsAWSServiceRoleForAutoScaling"]
    error_message = "Auto Scaling's role may use the key of the head's disk."
  }
}
