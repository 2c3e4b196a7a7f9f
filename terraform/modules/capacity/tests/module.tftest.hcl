mock_provider "aws" {
  mock_data "aws_region" {
    defaults = { region = "eu-central-1" }
  }
}

variables {
  name                  = "cell-a"
  cluster               = "cell-a"
  target_group_arn      = "arn:target-group"
  key_arn               = "arn:aws:kms:eu-central-1:123456789012:key/00000000-0000-0000-0000-000000000000"
  security_group_ids    = { head = ["sg-1", "sg-2"], gateway = ["sg-1", "sg-3"], worker = ["sg-1"] }
  instance_profile_arns = { head = "arn:head", gateway = "arn:gateway", worker = "arn:worker" }
  pools = {
    head     = { kind = "head", instance_type = "m7i.large", image_id = "ami-0123456789abcdef0" }
    gateways = { kind = "gateway", instance_type = "c7i.large", image_id = "ami-0123456789abcdef0" }
    owned    = { kind = "worker", instance_type = "p5.48xlarge", image_id = "ami-0123456789abcdef0", market = "capacity-block", reservation_id = "cr-0123456789abcdef0" }
    cheap    = { kind = "worker", instance_type = "g6e.xlarge", image_id = "ami-0123456789abcdef0", market = "spot" }
  }
}

run "templates" {
  assert {
    condition     = alltrue([for one in aws_launch_template.pool : one.metadata_options[0].http_tokens == "required" && one.metadata_options[0].http_put_response_hop_limit == 1])
    error_message = "IMDSv2 is required, and only for the machine itself."
  }
  assert {
    condition     = alltrue([for one in aws_launch_template.pool : one.block_device_mappings[0].ebs[0].encrypted == "true" && one.block_device_mappings[0].ebs[0].kms_key_id == var.key_arn])
    error_message = "Every disk is encrypted with the region's key."
  }
  assert {
    condition     = jsonencode({ for name, one in aws_launch_template.pool : name => one.instance_market_options[*].market_type }) == jsonencode({ head = [], gateways = [], owned = ["capacity-block"], cheap = ["spot"] })
    error_message = "A pool is bought as it says."
  }
  assert {
    condition     = jsonencode({ for name, one in aws_launch_template.pool : name => one.capacity_reservation_specification[*].capacity_reservation_target[0].capacity_reservation_id }) == jsonencode({ head = [], gateways = [], owned = ["cr-0123456789abcdef0"], cheap = [] })
    error_message = "A reservation is used by the pool that names it."
  }
  assert {
    condition     = { for name, one in aws_launch_template.pool : name => one.vpc_security_group_ids } == { head = toset(["sg-1", "sg-2"]), gateways = toset(["sg-1", "sg-3"]), owned = toset(["sg-1"]), cheap = toset(["sg-1"]) }
    error_message = "A node has the groups of its kind."
  }
  assert {
    condition     = { for name, one in aws_launch_template.pool : name => one.iam_instance_profile[0].arn } == { head = "arn:head", gateways = "arn:gateway", owned = "arn:worker", cheap = "arn:worker" }
    error_message = "A node has the role of its kind."
  }
  assert {
    condition     = strcontains(base64decode(aws_launch_template.pool["gateways"].user_data), "--target-group-arn \"arn:target-group\"") && aws_launch_template.pool["cheap"].user_data == null
    error_message = "A gateway's node joins the target group; other nodes do not."
  }
  assert {
    condition     = jsonencode(output.reservation_ids) == jsonencode(["cr-0123456789abcdef0"])
    error_message = "reservation_ids lists what pools use."
  }
}

run "refuses_a_spot_head" {
  command = plan
  variables {
    pools = {
      head     = { kind = "head", instance_type = "g6e.xlarge", image_id = "ami-0123456789abcdef0", market = "spot" }
      gateways = { kind = "gateway", instance_type = "g6e.xlarge", image_id = "ami-0123456789abcdef0", market = "on-demand" }
      gpu      = { kind = "worker", instance_type = "g6e.xlarge", image_id = "ami-0123456789abcdef0", market = "on-demand" }
    }
  }

  expect_failures = [var.pools]
}

run "refuses_two_heads" {
  command = plan
  variables {
    pools = {
      head     = { kind = "head", instance_type = "g6e.xlarge", image_id = "ami-0123456789abcdef0", market = "on-demand" }
      gateways = { kind = "gateway", instance_type = "g6e.xlarge", image_id = "ami-0123456789abcdef0", market = "on-demand" }
      gpu      = { kind = "worker", instance_type = "g6e.xlarge", image_id = "ami-0123456789abcdef0", market = "on-demand" }
      second   = { kind = "head", instance_type = "g6e.xlarge", image_id = "ami-0123456789abcdef0", market = "on-demand" }
    }
  }

  expect_failures = [var.pools]
}

run "refuses_no_gateway" {
  command = plan
  variables {
    pools = {
      head = { kind = "head", instance_type = "g6e.xlarge", image_id = "ami-0123456789abcdef0", market = "on-demand" }
      gpu  = { kind = "worker", instance_type = "g6e.xlarge", image_id = "ami-0123456789abcdef0", market = "on-demand" }
    }
  }

  expect_failures = [var.pools]
}

run "refuses_no_worker" {
  command = plan
  variables {
    pools = {
      head     = { kind = "head", instance_type = "g6e.xlarge", image_id = "ami-0123456789abcdef0", market = "on-demand" }
      gateways = { kind = "gateway", instance_type = "g6e.xlarge", image_id = "ami-0123456789abcdef0", market = "on-demand" }
    }
  }

  expect_failures = [var.pools]
}

run "refuses_unknown_kind" {
  command = plan
  variables {
    pools = {
      head     = { kind = "head", instance_type = "g6e.xlarge", image_id = "ami-0123456789abcdef0", market = "on-demand" }
      gateways = { kind = "gateway", instance_type = "g6e.xlarge", image_id = "ami-0123456789abcdef0", market = "on-demand" }
      gpu      = { kind = "worker", instance_type = "g6e.xlarge", image_id = "ami-0123456789abcdef0", market = "on-demand" }
      other    = { kind = "driver", instance_type = "g6e.xlarge", image_id = "ami-0123456789abcdef0", market = "on-demand" }
    }
  }

  expect_failures = [var.pools]
}

run "refuses_unknown_market" {
  command = plan
  variables {
    pools = {
      head     = { kind = "head", instance_type = "g6e.xlarge", image_id = "ami-0123456789abcdef0", market = "on-demand" }
      gateways = { kind = "gateway", instance_type = "g6e.xlarge", image_id = "ami-0123456789abcdef0", market = "on-demand" }
      gpu      = { kind = "worker", instance_type = "g6e.xlarge", image_id = "ami-0123456789abcdef0", market = "cheap" }
    }
  }

  expect_failures = [var.pools]
}

run "refuses_block_without_reservation" {
  command = plan
  variables {
    pools = {
      head     = { kind = "head", instance_type = "g6e.xlarge", image_id = "ami-0123456789abcdef0", market = "on-demand" }
      gateways = { kind = "gateway", instance_type = "g6e.xlarge", image_id = "ami-0123456789abcdef0", market = "on-demand" }
      gpu      = { kind = "worker", instance_type = "g6e.xlarge", image_id = "ami-0123456789abcdef0", market = "capacity-block" }
    }
  }

  expect_failures = [var.pools]
}

run "refuses_spot_with_reservation" {
  command = plan
  variables {
    pools = {
      head     = { kind = "head", instance_type = "g6e.xlarge", image_id = "ami-0123456789abcdef0", market = "on-demand" }
      gateways = { kind = "gateway", instance_type = "g6e.xlarge", image_id = "ami-0123456789abcdef0", market = "on-demand" }
      gpu      = { kind = "worker", instance_type = "g6e.xlarge", image_id = "ami-0123456789abcdef0", market = "spot", reservation_id = "cr-0123456789abcdef0" }
    }
  }

  expect_failures = [var.pools]
}

run "refuses_a_name_for_an_image" {
  command = plan
  variables {
    pools = {
      head     = { kind = "head", instance_type = "g6e.xlarge", image_id = "ami-0123456789abcdef0", market = "on-demand" }
      gateways = { kind = "gateway", instance_type = "g6e.xlarge", image_id = "ami-0123456789abcdef0", market = "on-demand" }
      gpu      = { kind = "worker", instance_type = "g6e.xlarge", image_id = "ubuntu", market = "on-demand" }
    }
  }

  expect_failures = [var.pools]
}
