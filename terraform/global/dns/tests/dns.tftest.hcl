mock_provider "aws" {}

variables {
  zone_id = "Z0123456789ABCDEFGHIJ"
  name    = "llm.example.org"
  endpoints = {
    eu-central-1 = { name = "eu-1234567890.eu-central-1.elb.amazonaws.com", zone_id = "Z215JYRZR1TBD5" }
    us-east-1    = { name = "us-1234567890.us-east-1.elb.amazonaws.com", zone_id = "Z35SXDOTRQ7X7K" }
  }
}

run "two_regions" {
  command = apply

  assert {
    condition     = output.endpoints == { eu-central-1 = "https://eu-central-1.llm.example.org", us-east-1 = "https://us-east-1.llm.example.org" }
    error_message = "Each region has its own name below the common one."
  }
  assert {
    condition     = output.failover_s == 90
    error_message = "docs/clients.md states it."
  }
}
