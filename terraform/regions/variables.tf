variable "region" {
  description = "AWS's name of the region."
  type        = string

  validation {
    condition     = can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]$", var.region))
    error_message = "region: allowed: AWS's name of a region, such as eu-central-1."
  }
}

variable "cidr_block" {
  description = "Addresses of the VPC; those of regions that talk to each other may not overlap."
  type        = string

  validation {
    condition     = can(cidrnetmask(var.cidr_block)) && can(regex("/(1[6-9]|20)$", var.cidr_block))
    error_message = "cidr_block: allowed: an IPv4 range from /16 to /20, such as 10.40.0.0/16."
  }
}

variable "availability_zones" {
  description = "Zones to use; the first one has the head. Add new ones at the end."
  type        = list(string)

  validation {
    condition     = length(distinct(var.availability_zones)) >= 2 && alltrue([for zone in var.availability_zones : startswith(zone, var.region)])
    error_message = "availability_zones: allowed: two to six different ones of the region, such as eu-central-1a."
  }
}

variable "elb_log_account_id" {
  description = "AWS's own account that writes the load balancer's logs, which differs by region."
  type        = string
}

variable "certificate_arn" {
  description = "The endpoint's certificate in ACM, in the same region."
  type        = string
}

variable "client_cidrs" {
  description = "Addresses that may use the endpoint; [\"0.0.0.0/0\"] for everybody who has a key."
  type        = list(string)
}

variable "operator_cidrs" {
  description = "Private addresses that may reach the head by SSH, such as a VPN's."
  type        = list(string)
  default     = []
}

variable "cpu_image_id" {
  description = "The machine image of the head and of gateways."
  type        = string
}

variable "gpu_image_id" {
  description = "The machine image of GPU nodes, with NVIDIA's driver."
  type        = string
}

variable "l40s_reservation_id" {
  description = "A capacity reservation for the pool l40s; null without one."
  type        = string
  default     = null
}

variable "repository_arns" {
  description = "ECR repositories with raylane's images."
  type        = list(string)
  default     = []
}

variable "nat_gateway" {
  description = "Whether nodes may reach the internet by HTTPS: gateways need it to reach public endpoints of other regions."
  type        = bool
  default     = true
}

variable "peer_networks" {
  description = "Other regions' networks (modules/region), where client_cidrs is not everybody."
  type        = map(object({ cidr_blocks = list(string), connection_id = optional(string) }))
  default     = {}
}

variable "key_name" {
  description = "The key pair by which `raylane deploy` reaches the head. With it, an Auto Scaling group of one keeps the head."
  type        = string
  default     = null
}

variable "alarm_topic_arns" {
  description = "SNS topics that hear of alarms."
  type        = list(string)
  default     = []
}

variable "tags" {
  description = "Tags of everything."
  type        = map(string)
  default     = {}
}
