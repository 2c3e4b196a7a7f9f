variable "name" {
  description = "The cluster's name and the region's, as in every resource's name."
  type        = string
}

variable "vpc_id" {
  description = "The VPC."
  type        = string
}

variable "endpoints_security_group_id" {
  description = "The security group of the VPC's interface endpoints."
  type        = string
}

variable "s3_prefix_list_id" {
  description = "S3's addresses."
  type        = string
}

variable "gateway_port" {
  description = "The spec's gateway.port."
  type        = number

  validation {
    condition     = var.gateway_port >= 1024 && var.gateway_port <= 65535
    error_message = "gateway_port: allowed: 1024 to 65535."
  }
}

variable "client_cidrs" {
  description = "Addresses that may use the endpoint; 0.0.0.0/0 for a public one."
  type        = list(string)

  validation {
    condition     = length(var.client_cidrs) > 0 && alltrue([for cidr in var.client_cidrs : can(cidrnetmask(cidr))])
    error_message = "client_cidrs: allowed: IPv4 ranges, at least one."
  }
}

variable "operator_cidrs" {
  description = "Addresses that may reach the head by SSH, such as a VPN's."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for cidr in var.operator_cidrs : can(cidrnetmask(cidr)) && can(regex("^(10\\.|192\\.168\\.|172\\.(1[6-9]|2[0-9]|3[01])\\.)", cidr)) && try(tonumber(split("/", cidr)[1]), 0) >= 8])
    error_message = "operator_cidrs: allowed: private IPv4 ranges (10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16); the head has no public address."
  }
}

variable "peer_networks" {
  description = "Other regions' networks (modules/region)."
  type        = map(object({ cidr_blocks = list(string), connection_id = optional(string) }))
  default     = {}
}

variable "internet" {
  description = "Whether nodes may open HTTPS connections to the internet (through NAT)."
  type        = bool
  default     = false
}
