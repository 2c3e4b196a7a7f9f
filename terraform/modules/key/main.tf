# One KMS key for what a region stores: disks, artifacts, secrets, flow logs.

data "aws_caller_identity" "current" {}
data "aws_partition" "current" {}
data "aws_region" "current" {}

locals {
  root = "arn:${data.aws_partition.current.partition}:iam::${data.aws_caller_identity.current.account_id}:root"
  # EC2 starts spot instances, and Auto Scaling the head, by roles of their own, which need the key of their disks.
  roles = "arn:${data.aws_partition.current.partition}:iam::${data.aws_caller_identity.current.account_id}:role/aws-service-role"
  starters = concat(
    var.spot ? ["${local.roles}/spot.amazonaws.com/AWSServiceRoleForEC2Spot"] : [],
    var.auto_scaling ? ["${local.roles}/autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling"] : [],
  )
  disks = flatten([for role in local.starters : [
    {
      Sid       = "Disks${reverse(split("/", role))[0]}"
      Effect    = "Allow"
      Principal = { AWS = role }
      Action    = ["kms:Decrypt", "kms:DescribeKey", "kms:Encrypt", "kms:GenerateDataKey*", "kms:ReEncrypt*"]
      Resource  = "*"
    },
    {
      Sid       = "Grants${reverse(split("/", role))[0]}"
      Effect    = "Allow"
      Principal = { AWS = role }
      Action    = ["kms:CreateGrant"]
      Resource  = "*"
      Condition = { Bool = { "kms:GrantIsForAWSResource" = "true" } }
    },
  ]])
  log_group = "arn:${data.aws_partition.current.partition}:logs:${data.aws_region.current.region}:${data.aws_caller_identity.current.account_id}:log-group:/${var.name}/*"
}

resource "aws_kms_key" "this" {
  description             = "${var.name}: disks, artifacts, secrets, logs"
  enable_key_rotation     = true
  deletion_window_in_days = 30
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(local.disks, [
      {
        Sid       = "AccountDecidesByIam" # without it nobody can change the key; roles still need a grant of their own
        Effect    = "Allow"
        Principal = { AWS = local.root }
        Action    = "kms:*"
        Resource  = "*"
      },
      {
        Sid       = "FlowLogs"
        Effect    = "Allow"
        Principal = { Service = "logs.${data.aws_region.current.region}.amazonaws.com" }
        Action    = ["kms:Decrypt", "kms:DescribeKey", "kms:Encrypt", "kms:GenerateDataKey*", "kms:ReEncrypt*"]
        Resource  = "*"
        Condition = { ArnLike = { "kms:EncryptionContext:aws:logs:arn" = local.log_group } }
      },
    ])
  })
}

resource "aws_kms_alias" "this" {
  name          = "alias/${var.name}"
  target_key_id = aws_kms_key.this.key_id
}
