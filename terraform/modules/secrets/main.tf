# One entry of Secrets Manager without a value: values never enter Terraform's state. An operator writes it once
# (terraform/README.md), and nodes read it with their roles.

resource "aws_secretsmanager_secret" "cell" {
  #checkov:skip=CKV2_AWS_57:A new secret or a new token of Ray restarts the cell; operators choose the moment.
  name                    = "raylane/${var.name}"
  description             = "The cell's secret, Ray's token and the digests of tenants' keys"
  kms_key_id              = var.key_arn
  recovery_window_in_days = 30
}
