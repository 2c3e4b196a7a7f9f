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
