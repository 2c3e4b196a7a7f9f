variable "name" {
  description = "The cluster's name and the region's, as in every resource's name."
  type        = string
}

variable "spot" {
  description = "Whether spot instances have disks with this key. Their service-linked role must exist (README, Spot)."
  type        = bool
  default     = false
}

variable "auto_scaling" {
  description = "Whether an Auto Scaling group starts the head. Its service-linked role must exist (README, Spot)."
  type        = bool
  default     = false
}
