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
  mock_resource "aws_s3_bucket" {
    defaults = { arn = "arn:aws:s3:::mock" }
  }
}

variables {
  name    = "cell-a"
  key_arn = "arn:aws:kms:eu-central-1:123456789012:key/00000000-0000-0000-0000-000000000000"
}

run "closed_buckets" {
  assert {
    condition     = alltrue([for one in [aws_s3_bucket_public_access_block.artifacts, aws_s3_bucket_public_access_block.logs] : one.block_public_acls && one.block_public_policy && one.ignore_public_acls && one.restrict_public_buckets])
    error_message = "Public access is blocked, in all four ways."
  }
  assert {
    condition     = one(aws_s3_bucket_server_side_encryption_configuration.artifacts.rule).apply_server_side_encryption_by_default[0].kms_master_key_id == var.key_arn
    error_message = "Models are encrypted with the region's key."
  }
  assert {
    condition     = aws_s3_bucket_versioning.artifacts.versioning_configuration[0].status == "Enabled"
    error_message = "A replaced model can be had again."
  }
  assert {
    condition = alltrue([
      for policy in [aws_s3_bucket_policy.artifacts.policy, aws_s3_bucket_policy.logs.policy] :
      contains([for one in jsondecode(policy).Statement : one if one.Effect == "Deny"][*].Condition, { Bool = { "aws:SecureTransport" = "false" } })
    ])
    error_message = "Requests without TLS are refused."
  }
  assert {
    condition     = length([for one in jsondecode(aws_s3_bucket_policy.artifacts.policy).Statement : one if one.Effect == "Allow"]) == 0
    error_message = "The bucket's policy allows nobody anything; roles do."
  }
  assert {
    condition = alltrue([
      for one in jsondecode(aws_s3_bucket_policy.artifacts.policy).Statement :
      try(keys(one.Condition.Null) == keys(one.Condition.StringNotEquals) && values(one.Condition.Null) == ["false"], false)
      if can(one.Condition.StringNotEquals)
    ]) && length([for one in jsondecode(aws_s3_bucket_policy.artifacts.policy).Statement : one if can(one.Condition.StringNotEquals)]) == 2
    error_message = "An upload without a header for encryption is allowed: it gets the bucket's default."
  }
  assert {
    condition     = aws_s3_bucket_logging.artifacts.target_bucket == aws_s3_bucket.logs.id
    error_message = "Accesses are logged."
  }
}

run "refuses_an_account_that_is_none" {
  command = plan
  variables {
    elb_log_account_id = "aws"
  }
  expect_failures = [var.elb_log_account_id]
}
