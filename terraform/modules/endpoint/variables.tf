variable "name" {
  description = "The cluster's name and the region's, as in every resource's name; load balancers allow 32 letters, of which 9 are ours."
  type        = string

  validation {
    condition     = length(var.name) <= 23
    error_message = "name: allowed: at most 23 letters (a target group's name has 32, with -gateways)."
  }
}

variable "vpc_id" {
  description = "The VPC."
  type        = string
}

variable "public" {
  description = "Whether the load balancer has public addresses."
  type        = bool
}

variable "subnet_ids" {
  description = "Subnets of the load balancer: public ones if it is public, else private ones."
  type        = list(string)
}

variable "security_group_id" {
  description = "The load balancer's security group."
  type        = string
}

variable "certificate_arn" {
  description = "The certificate that clients see, from ACM, in the same region."
  type        = string

  validation {
    condition     = can(regex("^arn:[a-z-]+:acm:[a-z0-9-]+:[0-9]{12}:certificate/", var.certificate_arn))
    error_message = "certificate_arn: allowed: the ARN of a certificate in ACM."
  }
}

variable "log_bucket" {
  description = "The bucket of access logs."
  type        = string
}

variable "gateway" {
  description = "What the spec says of gateways: gateway.port, gateway.timeouts.total_s, gateway.drain_s, and whether they end TLS themselves. The defaults are the spec's."
  type = object({
    port    = optional(number, 8000)
    total_s = optional(number, 600)
    drain_s = optional(number, 10)
    tls     = optional(bool, false)
  })

  validation {
    condition     = var.gateway.total_s > 0 && var.gateway.total_s <= 3970
    error_message = "gateway.total_s: allowed: above 0, at most 3970; a load balancer's idle time-out ends at 4000 s."
  }
  validation {
    condition     = var.gateway.drain_s > 0 && var.gateway.drain_s <= 3587
    error_message = "gateway.drain_s: allowed: above 0, at most 3587; a target group's deregistration delay ends at 3600 s."
  }
}

variable "peers" {
  description = "Whether cells of other regions reach the gateways here, for the spec's peering by a secret. Mutual TLS (peering.tls) needs a load balancer that leaves TLS to the gateways; this one does not."
  type        = bool
  default     = false
}

variable "deletion_protection" {
  description = "Whether the load balancer resists its removal."
  type        = bool
  default     = true
}

variable "web_acl_arn" {
  description = "A web ACL (WAF) to put in front."
  type        = string
  default     = null
}
