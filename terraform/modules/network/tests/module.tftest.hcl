mock_provider "aws" {
  mock_data "aws_region" {
    defaults = { region = "eu-central-1" }
  }
  mock_data "aws_caller_identity" {
    defaults = { account_id = "123456789012" }
  }
  mock_data "aws_partition" {
    defaults = { partition = "aws" }
  }
}

variables {
  name               = "cell-a"
  key_arn            = "arn:aws:kms:eu-central-1:123456789012:key/00000000-0000-0000-0000-000000000000"
  cidr_block         = "10.41.0.0/16"
  availability_zones = ["eu-central-1a", "eu-central-1b"]
  bucket_arns        = ["arn:aws:s3:::models"]
}

run "private_by_default" {
  assert {
    condition     = length(aws_subnet.public) == 0 && length(aws_internet_gateway.this) == 0 && length(aws_nat_gateway.this) == 0 && length(aws_route.nat) == 0
    error_message = "No way in or out of the VPC unless asked for."
  }
  assert {
    condition     = alltrue([for subnet in aws_subnet.private : subnet.map_public_ip_on_launch == false])
    error_message = "Nodes have no public addresses."
  }
  assert {
    condition     = [for zone in var.availability_zones : aws_subnet.private[zone].cidr_block] == ["10.41.0.0/20", "10.41.16.0/20"]
    error_message = "A zone's addresses follow from its place."
  }
  assert {
    condition     = toset(flatten([for one in jsondecode(aws_vpc_endpoint.s3.policy).Statement : one.Resource])) == toset(["arn:aws:s3:::models", "arn:aws:s3:::models/*", "arn:aws:s3:::prod-eu-central-1-starport-layer-bucket", "arn:aws:s3:::prod-eu-central-1-starport-layer-bucket/*"])
    error_message = "The S3 endpoint admits the models' bucket and ECR's layers."
  }
}

run "public_where_asked" {
  variables {
    public_subnets = true
    nat_gateway    = true
  }
  assert {
    condition     = length(aws_subnet.public) == 2 && length(aws_nat_gateway.this) == 2 && length(setintersection([for one in aws_subnet.public : one.cidr_block], [for one in aws_subnet.private : one.cidr_block])) == 0
    error_message = "Public subnets have addresses of their own."
  }
}

run "a_connection_is_a_way_from_each_zone" {
  variables {
    peer_networks = {
      us-east-1 = { cidr_blocks = ["10.42.0.0/16"], connection_id = "pcx-0123456789abcdef0" }
      eu-west-1 = { cidr_blocks = ["203.0.113.7/32"] }
    }
  }
  assert {
    condition     = length(aws_route.peer) == 2 && alltrue([for one in aws_route.peer : one.destination_cidr_block == "10.42.0.0/16" && one.vpc_peering_connection_id == "pcx-0123456789abcdef0"])
    error_message = "Each private subnet has a route to the private peer, and none to the public one."
  }
}

run "refuses_one_zone" {
  command = plan
  variables {
    availability_zones = ["eu-central-1a"]
  }
  expect_failures = [var.availability_zones]
}

run "refuses_a_small_range" {
  command = plan
  variables {
    cidr_block = "10.41.0.0/24"
  }
  expect_failures = [var.cidr_block]
}
