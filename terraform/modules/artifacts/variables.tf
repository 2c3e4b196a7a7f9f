variable "name" {
  description = "The cluster's name and the region's; with the account's number it names the buckets."
  type        = string
}

variable "key_arn" {
  description = "The KMS key of the region."
  type        = string
}

variable "replaced_version_days" {
  description = "Days that replaced and deleted objects are kept."
  type        = number
  default     = 30

  validation {
    condition     = var.replaced_version_days >= 1
    error_message = "replaced_version_days: allowed: at least 1."
  }
}

variable "log_days" {
  description = "Days that access logs are kept."
  type        = number
  default     = 365

  validation {
    condition     = var.log_days >= 1
    error_message = "log_days: allowed: at least 1."
  }
}

variable "elb_log_account_id" {
  description = "The account from which load balancers deliver logs in regions opened before August 2022, as AWS lists it; null in newer ones."
  type        = string
  default     = null

  validation {
    condition     = var.elb_log_account_id == null || can(regex("^[0-9]{12}$", var.elb_log_account_id))
    error_message = "elb_log_account_id: allowed: twelve digits, or null."
  }
}
