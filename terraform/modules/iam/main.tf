# One role for each kind of node. All may read one prefix of artifacts and the cell's secret. A gateway may also put
# itself behind the load balancer; the head may start and stop nodes of this cluster, and reads no models.

data "aws_caller_identity" "current" {}
data "aws_partition" "current" {}
data "aws_region" "current" {}

locals {
  kinds  = toset(["head", "gateway", "worker"])
  ec2    = "arn:${data.aws_partition.current.partition}:ec2:${data.aws_region.current.region}:${data.aws_caller_identity.current.account_id}"
  images = "arn:${data.aws_partition.current.partition}:ec2:${data.aws_region.current.region}::image/*"
  kms_through = {
    head    = ["secretsmanager"]
    gateway = ["secretsmanager"]
    worker  = ["secretsmanager", "s3"]
  }
}

resource "aws_iam_role" "node" {
  for_each = local.kinds

  name = "${var.name}-${each.key}"
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "ec2.amazonaws.com" }
      Action    = "sts:AssumeRole"
    }]
  })
}

resource "aws_iam_instance_profile" "node" {
  for_each = local.kinds

  name = "${var.name}-${each.key}"
  role = aws_iam_role.node[each.key].name
}

resource "aws_iam_role_policy" "secrets" {
  for_each = local.kinds

  name = "read-the-secret"
  role = aws_iam_role.node[each.key].id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid      = "TheCellsSecret"
        Effect   = "Allow"
        Action   = "secretsmanager:GetSecretValue"
        Resource = var.secret_arn
      },
      {
        Sid      = "ItsKey"
        Effect   = "Allow"
        Action   = "kms:Decrypt"
        Resource = var.key_arn
        Condition = {
          StringEquals = {
            "kms:ViaService" = [for service in local.kms_through[each.key] : "${service}.${data.aws_region.current.region}.amazonaws.com"]
          }
        }
      },
    ]
  })
}

resource "aws_iam_role_policy" "artifacts" {
  name = "read-artifacts"
  role = aws_iam_role.node["worker"].id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid       = "ListThePrefix"
        Effect    = "Allow"
        Action    = "s3:ListBucket"
        Resource  = var.bucket_arn
        Condition = { StringLike = { "s3:prefix" = ["${var.artifact_prefix}/*"] } }
      },
      {
        Sid      = "ReadThePrefix"
        Effect   = "Allow"
        Action   = "s3:GetObject"
        Resource = "${var.bucket_arn}/${var.artifact_prefix}/*"
      },
    ]
  })
}

resource "aws_iam_role_policy" "images" {
  for_each = length(var.repository_arns) > 0 ? local.kinds : toset([])

  name = "pull-images"
  role = aws_iam_role.node[each.key].id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid      = "SignIn" # knows no resource
        Effect   = "Allow"
        Action   = "ecr:GetAuthorizationToken"
        Resource = "*"
      },
      {
        Sid      = "Pull"
        Effect   = "Allow"
        Action   = ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"]
        Resource = var.repository_arns
      },
    ]
  })
}

resource "aws_iam_role_policy" "register" {
  name = "stand-behind-the-load-balancer"
  role = aws_iam_role.node["gateway"].id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect   = "Allow"
      Action   = ["elasticloadbalancing:DeregisterTargets", "elasticloadbalancing:RegisterTargets"]
      Resource = var.target_group_arn
    }]
  })
}

# Sessions with nodes, and SSH through them, without an open port.
resource "aws_iam_role_policy" "sessions" {
  for_each = local.kinds

  name = "sessions"
  role = aws_iam_role.node[each.key].id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid    = "Channels" # know no resource
      Effect = "Allow"
      Action = [
        "ssm:UpdateInstanceInformation", "ssmmessages:CreateControlChannel", "ssmmessages:CreateDataChannel",
        "ssmmessages:OpenControlChannel", "ssmmessages:OpenDataChannel",
      ]
      Resource  = "*"
      Condition = { StringEquals = { "aws:RequestedRegion" = data.aws_region.current.region } }
    }]
  })
}

resource "aws_iam_role_policy" "state" {
  count = var.keeps_head ? 1 : 0

  name = "take-over-the-state"
  role = aws_iam_role.node["head"].id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "ec2:AttachVolume"
      Resource  = ["${local.ec2}:volume/${var.head_volume_id}", "${local.ec2}:instance/*"]
      Condition = { StringEquals = { "ec2:ResourceTag/raylane-cluster" = var.cluster } }
    }]
  })
}

# Ray's autoscaler on the head starts nodes from this cluster's launch templates, in its subnets, with its groups, and
# touches only instances that carry the cluster's tag.
resource "aws_iam_role_policy" "launch" {
  name = "start-and-stop-nodes"
  role = aws_iam_role.node["head"].id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid    = "Look" # EC2 knows no resources for these
        Effect = "Allow"
        Action = [
          "ec2:DescribeAvailabilityZones", "ec2:DescribeImages", "ec2:DescribeInstanceStatus", "ec2:DescribeInstanceTypes",
          "ec2:DescribeInstances", "ec2:DescribeKeyPairs", "ec2:DescribeLaunchTemplateVersions", "ec2:DescribeSecurityGroups",
          "ec2:DescribeSubnets", "ec2:DescribeVpcs",
        ]
        Resource  = "*"
        Condition = { StringEquals = { "aws:RequestedRegion" = data.aws_region.current.region } }
      },
      {
        Sid       = "StartTaggedInstances"
        Effect    = "Allow"
        Action    = "ec2:RunInstances"
        Resource  = ["${local.ec2}:instance/*"]
        Condition = { StringEquals = { "aws:RequestTag/ray-cluster-name" = var.cluster } }
      },
      {
        Sid       = "FromItsLaunchTemplates"
        Effect    = "Allow"
        Action    = "ec2:RunInstances"
        Resource  = ["${local.ec2}:launch-template/*"]
        Condition = { StringEquals = { "aws:ResourceTag/raylane-cluster" = var.cluster } }
      },
      {
        Sid    = "WithWhatTheyNeed"
        Effect = "Allow"
        Action = "ec2:RunInstances"
        Resource = concat(
          [for id in var.subnet_ids : "${local.ec2}:subnet/${id}"],
          [for id in var.security_group_ids : "${local.ec2}:security-group/${id}"],
          [for id in var.reservation_ids : "${local.ec2}:capacity-reservation/${id}"],
          [
            "${local.ec2}:key-pair/*", "${local.ec2}:network-interface/*", "${local.ec2}:spot-instances-request/*",
            "${local.ec2}:volume/*", local.images,
          ],
        )
      },
      {
        Sid       = "TagWhatItStarts"
        Effect    = "Allow"
        Action    = "ec2:CreateTags"
        Resource  = ["${local.ec2}:instance/*", "${local.ec2}:spot-instances-request/*", "${local.ec2}:volume/*"]
        Condition = { StringEquals = { "ec2:CreateAction" = "RunInstances" } }
      },
      {
        Sid       = "ItsOwnInstances"
        Effect    = "Allow"
        Action    = ["ec2:CreateTags", "ec2:StartInstances", "ec2:StopInstances", "ec2:TerminateInstances"]
        Resource  = ["${local.ec2}:instance/*"]
        Condition = { StringEquals = { "ec2:ResourceTag/ray-cluster-name" = var.cluster } }
      },
      {
        Sid       = "GiveThemTheirRoles"
        Effect    = "Allow"
        Action    = "iam:PassRole"
        Resource  = [aws_iam_role.node["gateway"].arn, aws_iam_role.node["worker"].arn]
        Condition = { StringEquals = { "iam:PassedToService" = "ec2.amazonaws.com" } }
      },
      {
        Sid      = "EncryptTheirDisks"
        Effect   = "Allow"
        Action   = ["kms:Decrypt", "kms:DescribeKey", "kms:GenerateDataKeyWithoutPlaintext", "kms:ReEncryptFrom", "kms:ReEncryptTo"]
        Resource = var.key_arn
        Condition = {
          StringEquals = { "kms:ViaService" = "ec2.${data.aws_region.current.region}.amazonaws.com" }
        }
      },
      {
        Sid      = "GrantTheirDisks"
        Effect   = "Allow"
        Action   = "kms:CreateGrant"
        Resource = var.key_arn
        Condition = {
          Bool         = { "kms:GrantIsForAWSResource" = "true" }
          StringEquals = { "kms:ViaService" = "ec2.${data.aws_region.current.region}.amazonaws.com" }
        }
      },
    ]
  })
}
