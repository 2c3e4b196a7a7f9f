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
  name               = "cell-a"
  cluster            = "cell-a"
  key_arn            = "arn:aws:kms:eu-central-1:123456789012:key/00000000-0000-0000-0000-000000000000"
  bucket_arn         = "arn:aws:s3:::models"
  artifact_prefix    = "team/models"
  secret_arn         = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:raylane/cell-a-AbCdEf"
  target_group_arn   = "arn:aws:elasticloadbalancing:eu-central-1:123456789012:targetgroup/cell-a/0123456789abcdef"
  subnet_ids         = ["subnet-1"]
  security_group_ids = ["sg-1", "sg-3"]
  reservation_ids    = ["cr-1"]
}

run "a_worker_reads_one_prefix_and_one_secret" {
  assert {
    condition = [for one in jsondecode(aws_iam_role_policy.artifacts.policy).Statement : [one.Action, one.Resource, try(one.Condition, null)]] == [
      ["s3:ListBucket", "arn:aws:s3:::models", { StringLike = { "s3:prefix" = ["team/models/*"] } }],
      ["s3:GetObject", "arn:aws:s3:::models/team/models/*", null],
    ]
    error_message = "Models: one prefix, to read."
  }
  assert {
    condition     = [for one in jsondecode(aws_iam_role_policy.secrets["worker"].policy).Statement : [one.Action, one.Resource]] == [["secretsmanager:GetSecretValue", var.secret_arn], ["kms:Decrypt", var.key_arn]]
    error_message = "Secrets: the cell's, to read, through its key."
  }
  assert {
    condition     = length(aws_iam_role_policy.images) == 0
    error_message = "No images without a repository."
  }
}

run "a_head_that_is_kept_takes_its_disk" {
  variables {
    keeps_head     = true
    head_volume_id = "vol-0123456789abcdef0"
  }
  assert {
    condition     = [for one in jsondecode(aws_iam_role_policy.state[0].policy).Statement : [one.Action, one.Resource[0], one.Condition.StringEquals]] == [["ec2:AttachVolume", "arn:aws:ec2:eu-central-1:123456789012:volume/vol-0123456789abcdef0", { "ec2:ResourceTag/raylane-cluster" = "cell-a" }]]
    error_message = "The head attaches the disk with its state, and no other."
  }
}

run "nothing_is_allowed_everywhere" {
  variables {
    repository_arns = ["arn:aws:ecr:eu-central-1:123456789012:repository/raylane"]
  }
  assert {
    condition = toset(flatten([
      for policy in concat([aws_iam_role_policy.artifacts.policy, aws_iam_role_policy.register.policy, aws_iam_role_policy.launch.policy], values(aws_iam_role_policy.sessions)[*].policy, values(aws_iam_role_policy.secrets)[*].policy, values(aws_iam_role_policy.images)[*].policy) :
      [for one in jsondecode(policy).Statement : one.Action if contains(flatten([one.Resource]), "*")]
      ])) == toset([
      "ec2:DescribeAvailabilityZones", "ec2:DescribeImages", "ec2:DescribeInstanceStatus", "ec2:DescribeInstanceTypes", "ec2:DescribeInstances",
      "ec2:DescribeKeyPairs", "ec2:DescribeLaunchTemplateVersions", "ec2:DescribeSecurityGroups", "ec2:DescribeSubnets", "ec2:DescribeVpcs",
      "ecr:GetAuthorizationToken", "ssm:UpdateInstanceInformation", "ssmmessages:CreateControlChannel",
      "ssmmessages:CreateDataChannel", "ssmmessages:OpenControlChannel", "ssmmessages:OpenDataChannel",
    ])
    error_message = "Only actions for which AWS knows no resource are allowed on all."
  }
  assert {
    condition     = alltrue([for one in jsondecode(aws_iam_role_policy.launch.policy).Statement : one.Sid == "Look" || length(keys(try(one.Condition, {}))) > 0 || one.Sid == "WithWhatTheyNeed"])
    error_message = "The head starts and stops this cluster's nodes, and no others."
  }
  assert {
    condition     = one([for one in jsondecode(aws_iam_role_policy.launch.policy).Statement : one if one.Action == "iam:PassRole"]).Resource == [aws_iam_role.node["gateway"].arn, aws_iam_role.node["worker"].arn]
    error_message = "The head gives nodes the roles of gateways and workers, not its own."
  }
}

run "refuses_a_whole_bucket" {
  command = plan
  variables {
    artifact_prefix = ""
  }
  expect_failures = [var.artifact_prefix]
}

run "refuses_a_pattern" {
  command = plan
  variables {
    artifact_prefix = "*"
  }
  expect_failures = [var.artifact_prefix]
}
