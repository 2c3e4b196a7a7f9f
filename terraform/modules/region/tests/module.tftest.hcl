mock_provider "aws" {
  mock_data "aws_region" {
    defaults = { region = "us-east-1" }
  }
  mock_data "aws_caller_identity" {
    defaults = { account_id = "123456789012" }
  }
  mock_data "aws_partition" {
    defaults = { partition = "aws" }
  }
}

variables {
  name               = "raylane-us-east-1"
  cidr_block         = "10.41.0.0/16"
  availability_zones = ["us-east-1a", "us-east-1b"]
  client_cidrs       = ["10.0.0.0/8"]
  certificate_arn    = "arn:aws:acm:us-east-1:123456789012:certificate/00000000-0000-0000-0000-000000000000"
  pools = {
    head     = { kind = "head", instance_type = "m7i.large", image_id = "ami-0123456789abcdef0" }
    gateways = { kind = "gateway", instance_type = "c7i.large", image_id = "ami-0123456789abcdef0" }
    l40s     = { kind = "worker", instance_type = "g6e.12xlarge", image_id = "ami-0123456789abcdef0" }
  }
}

run "a_second_region_needs_nothing_more" {
  assert {
    condition     = output.raylane.region == "us-east-1" && keys(output.raylane.pools) == ["gateways", "head", "l40s"]
    error_message = "The outputs are those of this region."
  }
}

run "refuses_peers_without_a_way_to_them" {
  command = plan
  variables {
    peers = true
  }
  expect_failures = [var.peers]
}

run "refuses_a_peer_with_its_own_addresses" {
  command = plan
  variables {
    peer_networks = { us-east-1 = { cidr_blocks = ["10.41.0.0/16"], connection_id = "pcx-0123456789abcdef0" } }
  }
  expect_failures = [var.peer_networks]
}

run "an_operator_is_woken" {
  variables {
    key_name         = "deploy"
    alarm_topic_arns = ["arn:aws:sns:us-east-1:123456789012:on-call"]
  }
  assert {
    condition     = { for name, one in aws_cloudwatch_metric_alarm.this : name => one.alarm_actions } == { no-gateway = toset(var.alarm_topic_arns), no-head = toset(var.alarm_topic_arns) } && output.raylane.head_group == "raylane-us-east-1-head" && output.raylane.ssm
    error_message = "For want of gateways, and of a head."
  }
}

run "refuses_a_name_too_long_for_a_load_balancer" {
  command = plan
  variables {
    name = "a-name-that-is-much-too-long"
  }
  expect_failures = [var.name]
}
