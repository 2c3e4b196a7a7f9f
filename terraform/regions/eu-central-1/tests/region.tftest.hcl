# `terraform test -var-file=terraform.tfvars.example` plans and applies the region against mocks: every expression is
# evaluated, and nothing is created.

mock_provider "aws" {
  source = "../../mocks"
}

override_resource {
  target = module.region.module.security.aws_security_group.nodes
  values = { id = "sg-11111111111111111" }
}

override_resource {
  target = module.region.module.security.aws_security_group.head
  values = { id = "sg-22222222222222222" }
}

override_resource {
  target = module.region.module.security.aws_security_group.gateways
  values = { id = "sg-33333333333333333" }
}

override_resource {
  target = module.region.module.security.aws_security_group.endpoint
  values = { id = "sg-44444444444444444" }
}

override_resource {
  target = module.region.module.iam.aws_iam_instance_profile.node["head"]
  values = { arn = "arn:aws:iam::123456789012:instance-profile/raylane-eu-central-1-head" }
}

override_resource {
  target = module.region.module.iam.aws_iam_instance_profile.node["gateway"]
  values = { arn = "arn:aws:iam::123456789012:instance-profile/raylane-eu-central-1-gateway" }
}

override_resource {
  target = module.region.module.iam.aws_iam_instance_profile.node["worker"]
  values = { arn = "arn:aws:iam::123456789012:instance-profile/raylane-eu-central-1-worker" }
}

run "whole_region" {
  command = apply
}
