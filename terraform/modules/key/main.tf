# One KMS key for what a region stores: disks, artifacts, secrets, flow logs.

data "aws_caller_identity" "current" {}
data "aws_partition" "current" {}
data "aws_region" "current" {}

locals {
  root = "arn:${data.aws_partition.current.partition}:iam::${data.aws_caller_identity.current.account_id}:root"
  # EC2 starts spot instances by a role of its own, which needs the key of their disks.
  spot_role = "arn:${data.aws_partition.current.partition}:iam::${data.aws_caller_identity.current.account_id}:role/aws-service-role/spot.amazonaws.com/AWSServiceRoleForEC2Spot"
  spot = [for one in [
    {
      Sid       = "DisksOfSpotInstances"
      Effect    = "Allow"
      Principal = { AWS = local.spot_role }
      Action    = ["kms:Decrypt", "kms:DescribeKey", "kms:Encrypt", "kms:GenerateDataKey*", "kms:ReEncrypt*"]
      Resource  = "*"
    },
    {
      Sid       = "GrantsForDisksOfSpotInstances"
      Effect    = "Allow"
      Principal = { AWS = local.spot_role }
      Action    = ["kms:CreateGrant"]
      Resource  = "*"
      Condition = { Bool = { "kms:GrantIsForAWSResource" = "true" } }
    },
  ] : one if var.spot]
  log_group = "arn:${data.aws_partition.current.partition}:logs:${data.aws_region.current.region}:${data.aws_caller_identity.current.account_id}:log-group:/${var.name}/*"
}

resource "aws_kms_key" "this" {
  description             = "${var.name}: disks, artifacts, secrets, logs"
  enable_key_rotation     = true
  deletion_window_in_days = 30
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(local.spot, [
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
