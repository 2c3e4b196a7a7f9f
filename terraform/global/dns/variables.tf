variable "zone_id" {
  description = "The hosted zone of Route 53 that holds all the names."
  type        = string
}

variable "name" {
  description = "The one name for the endpoints of all regions."
  type        = string
}

variable "endpoints" {
  description = "By AWS region: its output `endpoint`; `public = false` where that has no public addresses."
  type        = map(object({ name = string, zone_id = string, public = optional(bool, true) }))
}
