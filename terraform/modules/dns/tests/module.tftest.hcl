mock_provider "aws" {
  mock_resource "aws_route53_health_check" {
    defaults = { id = "11111111-2222-3333-4444-555555555555" }
  }
}

variables {
  zone_id = "Z0123456789ABCDEFGHIJ"
  name    = "llm.example.org"
  regions = {
    eu = {
      endpoint   = "eu.llm.example.org"
      dns_name   = "eu-1234567890.eu-central-1.elb.amazonaws.com"
      zone_id    = "Z215JYRZR1TBD5"
      aws_region = "eu-central-1"
    }
    us = {
      endpoint   = "us.llm.example.org"
      dns_name   = "internal-us-1234567890.us-east-1.elb.amazonaws.com"
      zone_id    = "Z35SXDOTRQ7X7K"
      aws_region = "us-east-1"
      public     = false
    }
  }
}

run "the_nearest_healthy_region_answers" {
  assert {
    condition     = alltrue([for name, record in aws_route53_record.all : record.name == "llm.example.org" && record.set_identifier == name])
    error_message = "One name, one record for each region."
  }
  assert {
    condition     = { for name, record in aws_route53_record.all : name => one(record.latency_routing_policy).region } == { eu = "eu-central-1", us = "us-east-1" }
    error_message = "By latency."
  }
  assert {
    condition     = alltrue([for record in values(aws_route53_record.all) : one(record.alias).evaluate_target_health])
    error_message = "A load balancer without a gateway that is ready is not answered with."
  }
}

run "public_endpoints_are_checked_by_their_own_word" {
  assert {
    condition     = keys(aws_route53_health_check.region) == ["eu"]
    error_message = "Route 53 cannot reach a private endpoint."
  }
  assert {
    condition     = aws_route53_health_check.region["eu"].resource_path == "/ready?model=*" && aws_route53_health_check.region["eu"].type == "HTTPS" && aws_route53_health_check.region["eu"].fqdn == "eu.llm.example.org"
    error_message = "The region's own name, not the common one: that may lead elsewhere."
  }
  assert {
    condition     = aws_route53_record.all["eu"].health_check_id == aws_route53_health_check.region["eu"].id && aws_route53_record.all["us"].health_check_id == null
    error_message = "The check decides on the record."
  }
  assert {
    condition     = output.failover_s == aws_route53_health_check.region["eu"].request_interval * aws_route53_health_check.region["eu"].failure_threshold + 60
    error_message = "What clients must expect follows from the checks and the TTL."
  }
}

run "each_region_has_a_name_of_its_own" {
  assert {
    condition     = toset([for record in values(aws_route53_record.region) : record.name]) == toset(["eu.llm.example.org", "us.llm.example.org"])
    error_message = "For the spec and for lists of endpoints."
  }
  assert {
    condition     = output.endpoints == { eu = "https://eu.llm.example.org", us = "https://us.llm.example.org" }
    error_message = "As the spec writes them."
  }
  assert {
    condition     = alltrue([for record in values(aws_route53_record.region) : !one(record.alias).evaluate_target_health])
    error_message = "It leads to its region or nowhere."
  }
}

run "refuses_one_region" {
  command = plan
  variables {
    regions = {
      eu = { endpoint = "eu.llm.example.org", dns_name = "x", zone_id = "Z1", aws_region = "eu-central-1" }
    }
  }
  expect_failures = [var.regions]
}

run "refuses_the_common_name_for_a_region" {
  command = plan
  variables {
    regions = {
      eu = { endpoint = "llm.example.org", dns_name = "x", zone_id = "Z1", aws_region = "eu-central-1" }
      us = { endpoint = "us.llm.example.org", dns_name = "y", zone_id = "Z2", aws_region = "us-east-1" }
    }
  }
  expect_failures = [var.regions]
}

run "refuses_a_name_that_is_none" {
  command = plan
  variables {
    name = "https://llm.example.org"
  }
  expect_failures = [var.name]
}
