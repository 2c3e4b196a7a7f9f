variable "name" {
  description = "The cluster's name and the region's, as in every resource's name."
  type        = string
}

variable "key_arn" {
  description = "The KMS key of the region."
  type        = string
}

variable "cidr_block" {
  description = "Addresses of the VPC. Each zone gets a sixteenth of them as a private subnet."
  type        = string

  validation {
    condition     = can(cidrnetmask(var.cidr_block)) && try(tonumber(split("/", var.cidr_block)[1]), 0) >= 16 && try(tonumber(split("/", var.cidr_block)[1]), 99) <= 20
    error_message = "cidr_block: allowed: an IPv4 range from /16 to /20, such as 10.40.0.0/16."
  }
}

variable "availability_zones" {
  description = "Zones to use. Order matters: a zone's addresses follow from its place, so add new ones at the end."
  type        = list(string)

  validation {
    condition     = length(var.availability_zones) >= 2 && length(var.availability_zones) <= 6 && length(distinct(var.availability_zones)) == length(var.availability_zones)
    error_message = "availability_zones: allowed: two to six different ones (a load balancer needs two)."
  }
}

variable "public_subnets" {
  description = "Whether to make public subnets, which a public load balancer needs. No node is ever placed there."
  type        = bool
  default     = false
}

variable "nat_gateway" {
  description = "Whether nodes may reach the internet through NAT, for models from a hub or packages at start."
  type        = bool
  default     = false
}

variable "peer_networks" {
  description = "Other regions' networks (modules/region)."
  type        = map(object({ cidr_blocks = list(string), connection_id = optional(string) }))
  default     = {}
}

variable "bucket_arns" {
  description = "Buckets that the S3 endpoint admits, besides that of ECR's image layers."
  type        = list(string)
}

variable "interface_endpoints" {
  description = "AWS APIs that nodes reach inside the VPC. Ray's head starts nodes through ec2."
  type        = set(string)
  default     = ["ec2", "ecr.api", "ecr.dkr", "elasticloadbalancing", "logs", "secretsmanager", "ssm", "ssmmessages", "sts"]
}

variable "flow_log_days" {
  description = "Days that flow logs are kept."
  type        = number
  default     = 365
}
