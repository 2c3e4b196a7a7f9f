variable "zone_id" {
  description = "The hosted zone of Route 53 that holds all the names."
  type        = string
}

variable "name" {
  description = "The one name for the endpoints of all regions, such as llm.example.org. Each region's certificate covers it, too."
  type        = string

  validation {
    condition     = can(regex("^[a-z0-9-]+(\\.[a-z0-9-]+)+$", var.name))
    error_message = "name: allowed: a host's name in lower case, such as llm.example.org."
  }
}

variable "regions" {
  description = "By the region's name in the spec: its own name (endpoint), the load balancer's name and zone (the region's output endpoint), the AWS region, and whether it has public addresses."
  type = map(object({
    endpoint   = string
    dns_name   = string
    zone_id    = string
    aws_region = string
    public     = optional(bool, true)
  }))

  validation {
    condition     = length(var.regions) > 1
    error_message = "regions: needed: at least two; with one there is nowhere to fail over to."
  }
  validation {
    condition     = length(distinct([for region in values(var.regions) : region.endpoint])) == length(var.regions) && !contains([for region in values(var.regions) : region.endpoint], var.name)
    error_message = "regions: each needs an endpoint of its own, other than name."
  }
}
