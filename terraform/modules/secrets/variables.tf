variable "name" {
  description = "The cluster's name and the region's, as in every resource's name."
  type        = string
}

variable "key_arn" {
  description = "The KMS key of the region."
  type        = string
}
