# `terraform test -var-file=terraform.tfvars.example`, as in ../../eu-central-1/tests.

mock_provider "aws" {
  source = "../../mocks"
}

run "whole_region" {
  command = apply

  assert {
    condition     = output.raylane.cluster == "raylane-us-east-1" && length(output.raylane.subnet_ids) == 3
    error_message = "The values are this region's own."
  }
}
