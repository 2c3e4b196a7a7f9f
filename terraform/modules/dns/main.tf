# One name for the endpoints of all regions: Route 53 answers with the nearest region that is healthy. And a name of its
# own for each region, for the spec's regions[].endpoint and for clients with a list of endpoints.

locals {
  check_interval_s = 10
  failures         = 3
  # Of an alias to a load balancer; AWS allows no other.
  ttl_s = 60
}

# Route 53's checkers ask from outside, so that a private endpoint cannot have one: there the load balancer's own view of
# its gateways counts alone (evaluate_target_health).
resource "aws_route53_health_check" "region" {
  for_each = { for name, region in var.regions : name => region if region.public }

  type              = "HTTPS"
  fqdn              = each.value.endpoint
  port              = 443
  resource_path     = "/ready?model=*"
  request_interval  = local.check_interval_s
  failure_threshold = local.failures
  enable_sni        = true

  tags = {
    Name = "${var.name} in ${each.key}"
  }
}

resource "aws_route53_record" "all" {
  #checkov:skip=CKV2_AWS_23:It points to a load balancer of its region's own state, which this one gets as a value.
  for_each = var.regions

  zone_id         = var.zone_id
  name            = var.name
  type            = "A"
  set_identifier  = each.key
  health_check_id = each.value.public ? aws_route53_health_check.region[each.key].id : null

  latency_routing_policy {
    region = each.value.aws_region
  }

  alias {
    name                   = each.value.dns_name
    zone_id                = each.value.zone_id
    evaluate_target_health = true
  }
}

resource "aws_route53_record" "region" {
  #checkov:skip=CKV2_AWS_23:It points to a load balancer of its region's own state, which this one gets as a value.
  for_each = var.regions

  zone_id = var.zone_id
  name    = each.value.endpoint
  type    = "A"

  # Always the region itself: who asks for this name wants that region or none.
  alias {
    name                   = each.value.dns_name
    zone_id                = each.value.zone_id
    evaluate_target_health = false
  }
}
