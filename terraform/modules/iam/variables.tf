variable "name" {
  description = "The cluster's name and the region's, as in every resource's name."
  type        = string
}

variable "cluster" {
  description = "The name of the Ray cluster: the value of the tags ray-cluster-name (Ray's) and raylane-cluster (ours)."
  type        = string
}

variable "key_arn" {
  description = "The KMS key of the region."
  type        = string
}

variable "bucket_arn" {
  description = "The bucket of the models."
  type        = string
}

variable "artifact_prefix" {
  description = "What nodes may read of the bucket, without slashes at its ends."
  type        = string

  validation {
    condition     = can(regex("^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*$", var.artifact_prefix))
    error_message = "artifact_prefix: allowed: letters, digits, dots, dashes and underscores, with single slashes between."
  }
}

variable "secret_arn" {
  description = "The cell's secret."
  type        = string
}

variable "repository_arns" {
  description = "ECR repositories that nodes may pull images from."
  type        = list(string)
  default     = []
}

variable "target_group_arn" {
  description = "The load balancer's target group, which gateways join and leave."
  type        = string
}

variable "subnet_ids" {
  description = "Subnets in which the head may start nodes."
  type        = list(string)
}

variable "security_group_ids" {
  description = "Security groups that the head may give to nodes."
  type        = list(string)
}

variable "reservation_ids" {
  description = "Capacity reservations from which the head may start nodes."
  type        = list(string)
  default     = []
}

variable "keeps_head" {
  description = "Whether an Auto Scaling group keeps the head."
  type        = bool
  default     = false
}

variable "head_volume_id" {
  description = "The disk with the head's state, which the head attaches."
  type        = string
  default     = null
}
