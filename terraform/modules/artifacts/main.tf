# The bucket that models are read from (docs/artifacts.md), and the one that access logs go to.

data "aws_caller_identity" "current" {}
data "aws_partition" "current" {}

locals {
  account_id  = data.aws_caller_identity.current.account_id
  bucket      = "${var.name}-artifacts-${local.account_id}"
  log_bucket  = "${var.name}-logs-${local.account_id}"
  buckets     = { artifacts = aws_s3_bucket.artifacts, logs = aws_s3_bucket.logs }
  old_account = var.elb_log_account_id == null ? [] : [var.elb_log_account_id]
}

resource "aws_s3_bucket" "artifacts" {
  #checkov:skip=CKV_AWS_144:Each region has a bucket of its own; models can be uploaded again from where they came.
  #checkov:skip=CKV2_AWS_62:Nothing reacts to uploads; a replica lists the prefix when it starts.
  bucket        = local.bucket
  force_destroy = false
}

resource "aws_s3_bucket" "logs" {
  #checkov:skip=CKV_AWS_144:Access logs of one region stay in it.
  #checkov:skip=CKV_AWS_145:S3 and load balancers deliver access logs only to buckets encrypted with SSE-S3.
  #checkov:skip=CKV2_AWS_62:Nothing reacts to access logs.
  #checkov:skip=CKV_AWS_18:The bucket of access logs would log its own deliveries without end.
  bucket        = local.log_bucket
  force_destroy = false
}

resource "aws_s3_bucket_server_side_encryption_configuration" "artifacts" {
  bucket = aws_s3_bucket.artifacts.id

  rule {
    bucket_key_enabled = true # one call of KMS for many objects
    apply_server_side_encryption_by_default {
      sse_algorithm     = "aws:kms"
      kms_master_key_id = var.key_arn
    }
  }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "logs" {
  bucket = aws_s3_bucket.logs.id

  rule {
    apply_server_side_encryption_by_default {
      sse_algorithm = "AES256"
    }
  }
}

resource "aws_s3_bucket_versioning" "artifacts" {
  bucket = aws_s3_bucket.artifacts.id

  versioning_configuration {
    status = "Enabled"
  }
}

resource "aws_s3_bucket_versioning" "logs" {
  bucket = aws_s3_bucket.logs.id

  versioning_configuration {
    status = "Enabled"
  }
}

resource "aws_s3_bucket_public_access_block" "artifacts" {
  bucket                  = aws_s3_bucket.artifacts.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_public_access_block" "logs" {
  bucket                  = aws_s3_bucket.logs.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_ownership_controls" "this" {
  for_each = local.buckets

  bucket = each.value.id

  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

resource "aws_s3_bucket_policy" "artifacts" {
  bucket = aws_s3_bucket.artifacts.id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid       = "OnlyTls"
        Effect    = "Deny"
        Principal = "*"
        Action    = "s3:*"
        Resource  = [aws_s3_bucket.artifacts.arn, "${aws_s3_bucket.artifacts.arn}/*"]
        Condition = { Bool = { "aws:SecureTransport" = "false" } }
      },
      # An upload that names no encryption gets the bucket's default, which is this key. Without `Null`, the conditions
      # would match such an upload, too: a negated condition holds where the request lacks the header.
      {
        Sid       = "OnlyTheKeyOfTheRegion"
        Effect    = "Deny"
        Principal = "*"
        Action    = "s3:PutObject"
        Resource  = "${aws_s3_bucket.artifacts.arn}/*"
        Condition = {
          Null            = { "s3:x-amz-server-side-encryption-aws-kms-key-id" = "false" }
          StringNotEquals = { "s3:x-amz-server-side-encryption-aws-kms-key-id" = var.key_arn }
        }
      },
      {
        Sid       = "NoOtherEncryption"
        Effect    = "Deny"
        Principal = "*"
        Action    = "s3:PutObject"
        Resource  = "${aws_s3_bucket.artifacts.arn}/*"
        Condition = {
          Null            = { "s3:x-amz-server-side-encryption" = "false" }
          StringNotEquals = { "s3:x-amz-server-side-encryption" = "aws:kms" }
        }
      },
    ]
  })
  depends_on = [aws_s3_bucket_public_access_block.artifacts]
}

resource "aws_s3_bucket_policy" "logs" {
  bucket = aws_s3_bucket.logs.id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      [
        {
          Sid       = "OnlyTls"
          Effect    = "Deny"
          Principal = "*"
          Action    = "s3:*"
          Resource  = [aws_s3_bucket.logs.arn, "${aws_s3_bucket.logs.arn}/*"]
          Condition = { Bool = { "aws:SecureTransport" = "false" } }
        },
        {
          Sid       = "AccessLogsOfTheArtifacts"
          Effect    = "Allow"
          Principal = { Service = "logging.s3.amazonaws.com" }
          Action    = "s3:PutObject"
          Resource  = "${aws_s3_bucket.logs.arn}/s3/*"
          Condition = {
            ArnLike      = { "aws:SourceArn" = aws_s3_bucket.artifacts.arn }
            StringEquals = { "aws:SourceAccount" = local.account_id }
          }
        },
        {
          Sid       = "AccessLogsOfTheLoadBalancer"
          Effect    = "Allow"
          Principal = { Service = "logdelivery.elasticloadbalancing.amazonaws.com" }
          Action    = "s3:PutObject"
          Resource  = "${aws_s3_bucket.logs.arn}/endpoint/AWSLogs/${local.account_id}/*"
        },
      ],
      [
        for account_id in local.old_account : {
          Sid       = "AccessLogsOfTheLoadBalancerInOlderRegions"
          Effect    = "Allow"
          Principal = { AWS = "arn:${data.aws_partition.current.partition}:iam::${account_id}:root" }
          Action    = "s3:PutObject"
          Resource  = "${aws_s3_bucket.logs.arn}/endpoint/AWSLogs/${local.account_id}/*"
        }
      ],
    )
  })
  depends_on = [aws_s3_bucket_public_access_block.logs]
}

resource "aws_s3_bucket_logging" "artifacts" {
  bucket        = aws_s3_bucket.artifacts.id
  target_bucket = aws_s3_bucket.logs.id
  target_prefix = "s3/"
}

resource "aws_s3_bucket_lifecycle_configuration" "artifacts" {
  bucket = aws_s3_bucket.artifacts.id

  rule {
    id     = "uploads-that-broke-off"
    status = "Enabled"
    filter {}
    abort_incomplete_multipart_upload {
      days_after_initiation = 7
    }
  }

  rule {
    id     = "replaced-versions"
    status = "Enabled"
    filter {}
    noncurrent_version_expiration {
      noncurrent_days = var.replaced_version_days
    }
  }
  depends_on = [aws_s3_bucket_versioning.artifacts]
}

resource "aws_s3_bucket_lifecycle_configuration" "logs" {
  bucket = aws_s3_bucket.logs.id

  rule {
    id     = "old-logs"
    status = "Enabled"
    filter {}
    expiration {
      days = var.log_days
    }
    noncurrent_version_expiration {
      noncurrent_days = 1
    }
    abort_incomplete_multipart_upload {
      days_after_initiation = 7
    }
  }
  depends_on = [aws_s3_bucket_versioning.logs]
}
