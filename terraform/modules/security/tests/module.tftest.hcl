mock_provider "aws" {}

variables {
  name                        = "cell-a"
  vpc_id                      = "vpc-1"
  endpoints_security_group_id = "sg-9"
  s3_prefix_list_id           = "pl-1"
  gateway_port                = 8000
  client_cidrs                = ["0.0.0.0/0"]
  operator_cidrs              = ["10.9.0.0/24", "172.16.0.0/12"]
}

run "who_may_talk_to_whom" {
  assert {
    condition     = aws_vpc_security_group_ingress_rule.nodes.referenced_security_group_id == aws_security_group.nodes.id && aws_vpc_security_group_ingress_rule.nodes.cidr_ipv4 == null
    error_message = "Ray's ports are open to the cluster's nodes alone."
  }
  assert {
    condition     = aws_vpc_security_group_ingress_rule.gateways.referenced_security_group_id == aws_security_group.endpoint.id && aws_vpc_security_group_ingress_rule.gateways.to_port == 8000
    error_message = "Gateways hear the load balancer, at their port."
  }
  assert {
    condition     = alltrue([for rule in aws_vpc_security_group_ingress_rule.endpoint : rule.from_port == 443 && rule.to_port == 443 && rule.security_group_id == aws_security_group.endpoint.id])
    error_message = "Clients reach the load balancer's TLS port and nothing else."
  }
  assert {
    condition     = length(aws_vpc_security_group_egress_rule.nodes_internet) == 0
    error_message = "Without NAT, nothing goes out to the internet."
  }
}

run "peers_come_in_and_are_reached_through_a_connection" {
  variables {
    client_cidrs = ["10.0.0.0/16"]
    peer_networks = {
      us-east-1 = { cidr_blocks = ["10.41.0.0/16"], connection_id = "pcx-0123456789abcdef0" }
      eu-west-1 = { cidr_blocks = ["203.0.113.7/32"] }
    }
  }
  assert {
    condition     = keys(aws_vpc_security_group_ingress_rule.endpoint) == ["10.0.0.0/16", "10.41.0.0/16", "203.0.113.7/32"] && keys(aws_vpc_security_group_egress_rule.peers) == ["10.41.0.0/16"]
    error_message = "Peers come to the endpoint; the private ones are also reached."
  }
}

run "refuses_public_operators" {
  command = plan
  variables {
    operator_cidrs = ["203.0.113.0/24"]
  }
  expect_failures = [var.operator_cidrs]
}

run "refuses_everybody_as_an_operator" {
  command = plan
  variables {
    operator_cidrs = ["0.0.0.0/0"]
  }
  expect_failures = [var.operator_cidrs]
}

run "refuses_a_range_that_only_looks_private" {
  command = plan
  variables {
    operator_cidrs = ["10.0.0.0/7"]
  }
  expect_failures = [var.operator_cidrs]
}

run "refuses_no_clients" {
  command = plan
  variables {
    client_cidrs = []
  }
  expect_failures = [var.client_cidrs]
}

run "refuses_a_word_for_a_range" {
  command = plan
  variables {
    client_cidrs = ["everybody"]
  }
  expect_failures = [var.client_cidrs]
}

run "refuses_a_privileged_port" {
  command = plan
  variables {
    gateway_port = 443
  }
  expect_failures = [var.gateway_port]
}
