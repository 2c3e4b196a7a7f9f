# The load balancer in front of the gateways: TLS to clients, health by the gateway's /ready, and time-outs that fit the
# gateway's own (cluster/spec/gateway.py).

locals {
  # A request that is not streamed is silent until its last token, for at most total_s.
  idle_timeout_s = ceil(var.gateway.total_s) + 30
  # The load balancer reuses connections. If a gateway closed an idle one first, the next request on it would get 502.
  keep_alive_s = local.idle_timeout_s + 30
  # What a gateway must keep serving after it has announced its end: until two checks have failed.
  check_interval_s = 5
  check_timeout_s  = 3
  checks           = 2
  lame_duck_s      = local.check_interval_s * local.checks + local.check_timeout_s
  protocol         = var.gateway.tls ? "HTTPS" : "HTTP"
  # Paths that need the cluster's secret have no business outside the VPC (docs/operations.md, Ports).
  inner_paths = ["/metrics", "/raylane", "/raylane/*"]
}

resource "aws_lb" "this" {
  #checkov:skip=CKV2_AWS_28:A web ACL is the account's own choice, by web_acl_arn; each request needs a tenant's key.
  #checkov:skip=CKV2_AWS_76:A web ACL and its rules are the account's own choice; nothing here runs Java.
  name                       = var.name
  load_balancer_type         = "application"
  internal                   = !var.public
  subnets                    = var.subnet_ids
  security_groups            = [var.security_group_id]
  idle_timeout               = local.idle_timeout_s
  client_keep_alive          = 3600
  drop_invalid_header_fields = true
  desync_mitigation_mode     = "strictest"
  enable_deletion_protection = var.deletion_protection

  access_logs {
    bucket  = var.log_bucket
    prefix  = "endpoint"
    enabled = true
  }
}

resource "aws_lb_target_group" "gateways" {
  #checkov:skip=CKV_AWS_378:Inside the VPC, between two security groups; gateway.tls makes it HTTPS where gateways end TLS.
  name                 = "${var.name}-gateways"
  vpc_id               = var.vpc_id
  target_type          = "instance"
  protocol             = local.protocol
  port                 = var.gateway.port
  deregistration_delay = min(3600, ceil(max(var.gateway.drain_s, var.gateway.total_s)) + local.lame_duck_s)
  # Streams differ in length a hundredfold; gateways with fewer open ones get the next.
  load_balancing_algorithm_type = "least_outstanding_requests"

  health_check {
    path                = "/ready"
    protocol            = local.protocol
    port                = "traffic-port"
    matcher             = "200"
    interval            = local.check_interval_s
    timeout             = local.check_timeout_s
    healthy_threshold   = 2
    unhealthy_threshold = local.checks
  }
}

resource "aws_lb_listener" "tls" {
  load_balancer_arn = aws_lb.this.arn
  protocol          = "HTTPS"
  port              = 443
  ssl_policy        = "ELBSecurityPolicy-TLS13-1-2-2021-06"
  certificate_arn   = var.certificate_arn

  default_action {
    type             = "forward"
    target_group_arn = aws_lb_target_group.gateways.arn
  }
}

# Cells of other regions come through the same door: their requests are signed, and the gateway checks that.
resource "aws_lb_listener_rule" "peers" {
  count = var.peers ? 1 : 0

  listener_arn = aws_lb_listener.tls.arn
  priority     = 1

  action {
    type             = "forward"
    target_group_arn = aws_lb_target_group.gateways.arn
  }

  condition {
    path_pattern {
      values = ["/raylane/peers/*"]
    }
  }
}

resource "aws_lb_listener_rule" "inner_paths" {
  listener_arn = aws_lb_listener.tls.arn
  priority     = 2

  action {
    type = "fixed-response"

    fixed_response {
      content_type = "text/plain"
      status_code  = "404"
      message_body = "not found"
    }
  }

  condition {
    path_pattern {
      values = local.inner_paths
    }
  }
}

resource "aws_wafv2_web_acl_association" "this" {
  count = var.web_acl_arn == null ? 0 : 1

  resource_arn = aws_lb.this.arn
  web_acl_arn  = var.web_acl_arn
}
