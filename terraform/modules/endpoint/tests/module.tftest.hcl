mock_provider "aws" {
  mock_resource "aws_lb" {
    defaults = { arn = "arn:aws:elasticloadbalancing:eu-central-1:123456789012:loadbalancer/app/cell-a/0123456789abcdef" }
  }
  mock_resource "aws_lb_target_group" {
    defaults = { arn = "arn:aws:elasticloadbalancing:eu-central-1:123456789012:targetgroup/cell-a-gateways/0123456789abcdef" }
  }
}

variables {
  name              = "cell-a"
  vpc_id            = "vpc-1"
  public            = false
  subnet_ids        = ["subnet-1", "subnet-2"]
  security_group_id = "sg-4"
  certificate_arn   = "arn:aws:acm:eu-central-1:123456789012:certificate/00000000-0000-0000-0000-000000000000"
  log_bucket        = "cell-a-logs"
  gateway           = { port = 9000, total_s = 899.5, drain_s = 45 }
}

run "timeouts_fit" {
  assert {
    condition     = aws_lb.this.idle_timeout > var.gateway.total_s
    error_message = "A request that is not streamed may be silent for total_s."
  }
  assert {
    condition     = output.gateway.keep_alive_s > aws_lb.this.idle_timeout
    error_message = "A gateway closes an idle connection after the load balancer does."
  }
  assert {
    condition     = aws_lb_target_group.gateways.deregistration_delay >= var.gateway.drain_s + output.gateway.lame_duck_s
    error_message = "A gateway that leaves keeps its connections until it has drained."
  }
  assert {
    condition     = output.gateway.lame_duck_s >= aws_lb_target_group.gateways.health_check[0].interval * aws_lb_target_group.gateways.health_check[0].unhealthy_threshold
    error_message = "A gateway serves until the load balancer knows that it leaves."
  }
}

run "only_tls_and_only_clients_paths" {
  assert {
    condition     = aws_lb_listener.tls.protocol == "HTTPS" && aws_lb_listener.tls.port == 443
    error_message = "The listener speaks TLS."
  }
  assert {
    condition     = aws_lb_target_group.gateways.health_check[0].path == "/ready" && aws_lb_target_group.gateways.port == 9000
    error_message = "Health is the gateway's own word, at its port."
  }
  assert {
    condition     = toset(one(one(aws_lb_listener_rule.inner_paths.condition).path_pattern).values) == toset(["/metrics", "/raylane", "/raylane/*"]) && aws_lb_listener_rule.inner_paths.action[0].fixed_response[0].status_code == "404"
    error_message = "Paths that need the secret stay inside."
  }
  assert {
    condition     = aws_lb.this.internal && aws_lb.this.drop_invalid_header_fields
    error_message = "Private, unless asked otherwise."
  }
}

run "peers_stay_out_unless_asked_in" {
  assert {
    condition     = length(aws_lb_listener_rule.peers) == 0
    error_message = "A cell without peers has no page for them outside."
  }
}

run "peers_reach_their_pages_and_no_others" {
  variables {
    peers = true
  }
  assert {
    condition     = one(one(aws_lb_listener_rule.peers[0].condition).path_pattern).values == toset(["/raylane/peers/*"]) && aws_lb_listener_rule.peers[0].action[0].type == "forward"
    error_message = "Only what is signed comes in."
  }
  assert {
    condition     = aws_lb_listener_rule.peers[0].priority < aws_lb_listener_rule.inner_paths.priority
    error_message = "It is looked at before the rule that keeps all else of /raylane inside."
  }
}

run "tls_to_gateways" {
  variables {
    gateway = { tls = true }
  }
  assert {
    condition     = aws_lb_target_group.gateways.protocol == "HTTPS" && aws_lb_target_group.gateways.health_check[0].protocol == "HTTPS"
    error_message = "Where gateways end TLS, the load balancer speaks it to them."
  }
}

run "refuses_a_request_longer_than_a_load_balancer_waits" {
  command = plan
  variables {
    gateway = { total_s = 3971 }
  }
  expect_failures = [var.gateway]
}

run "refuses_a_drain_longer_than_a_target_group_waits" {
  command = plan
  variables {
    gateway = { drain_s = 3588 }
  }
  expect_failures = [var.gateway]
}

run "takes_the_longest" {
  command = plan
  variables {
    gateway = { total_s = 3970, drain_s = 3587 }
  }
  assert {
    condition     = aws_lb.this.idle_timeout == 4000 && aws_lb_target_group.gateways.deregistration_delay == "3600"
    error_message = "AWS's own limits: 4000 and 3600 s."
  }
}

run "refuses_a_certificate_that_is_none" {
  command = plan
  variables {
    certificate_arn = "arn:aws:iam::123456789012:server-certificate/x"
  }
  expect_failures = [var.certificate_arn]
}
