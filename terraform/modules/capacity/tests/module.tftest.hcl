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
    condition     = strcontains(base64decode(aws_launch_template.pool["gateways"].user_data), "until aws elbv2 register-targets") && strcontains(base64decode(aws_launch_template.pool["gateways"].user_data), "--target-group-arn \"arn:target-group\"") && !strcontains(base64decode(aws_launch_template.pool["cheap"].user_data), "register-targets")
    error_message = "A gateway's node joins the target group, and tries again; other nodes do not."
  }
  assert {
    condition     = strcontains(base64decode(aws_launch_template.pool["cheap"].user_data), "/.cache/raylane") && aws_launch_template.pool["head"].user_data == null
    error_message = "A worker's own disks hold its models."
  }
  assert {
    condition     = length(aws_autoscaling_group.head) == 0 && length(aws_launch_template.pool["head"].network_interfaces) == 0 && output.head_group == null
    error_message = "Ray's launcher starts the head, unless asked otherwise."
  }
  assert {
    condition     = jsonencode(output.reservation_ids) == jsonencode(["cr-0123456789abcdef0"])
    error_message = "reservation_ids lists what pools use."
  }
}

run "a_head_that_is_kept" {
  variables {
    head_address = { subnet_id = "subnet-1", availability_zone = "eu-central-1a" }
    key_name     = "deploy"
    tags         = { team = "a" }
  }
  assert {
    condition     = [aws_autoscaling_group.head[0].min_size, aws_autoscaling_group.head[0].max_size, aws_autoscaling_group.head[0].desired_capacity] == [1, 1, 1] && aws_autoscaling_group.head[0].vpc_zone_identifier == null
    error_message = "One instance; its subnet is the network interface's."
  }
  assert {
    condition     = aws_launch_template.pool["head"].network_interfaces[0].network_interface_id == aws_network_interface.head[0].id && aws_launch_template.pool["head"].vpc_security_group_ids == null && aws_network_interface.head[0].security_groups == toset(["sg-1", "sg-2"])
    error_message = "Each head has the same address, with the head's groups."
  }
  assert {
    condition     = strcontains(base64decode(aws_launch_template.pool["head"].user_data), "attach-volume --region \"eu-central-1\" --volume-id \"${aws_ebs_volume.head[0].id}\"") && aws_ebs_volume.head[0].encrypted && aws_ebs_volume.head[0].kms_key_id == var.key_arn && aws_ebs_volume.head[0].availability_zone == one(aws_autoscaling_group.head[0].availability_zones)
    error_message = "Each head has the same disk, encrypted with the region's key, in its own zone."
  }
  assert {
    condition     = { for one in aws_autoscaling_group.head[0].tag : one.key => one.value if startswith(one.key, "ray-") } == { ray-cluster-name = "cell-a", ray-node-type = "head", ray-user-node-type = "head", ray-node-name = "ray-cell-a-head" } && alltrue([for one in aws_autoscaling_group.head[0].tag : one.propagate_at_launch])
    error_message = "Ray's launcher knows the head by its tags."
  }
  assert {
    condition     = alltrue([for one in aws_launch_template.pool : alltrue([for of in one.tag_specifications : of.tags.team == "a"])])
    error_message = "Instances and disks have the user's tags."
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
