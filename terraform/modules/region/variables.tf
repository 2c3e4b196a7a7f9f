variable "name" {
  description = "The name of the region's Ray cluster, and the beginning of every resource's name."
  type        = string

  validation {
    condition     = can(regex("^[a-z]([a-z0-9-]{0,21}[a-z0-9])?$", var.name))
    error_message = "name: allowed: up to 23 lower-case letters, digits and dashes."
  }
}

variable "cidr_block" {
  description = "Addresses of the VPC; those of regions that talk to each other may not overlap."
  type        = string
}

variable "availability_zones" {
  description = "Zones to use; add new ones at the end."
  type        = list(string)
}

variable "public" {
  description = "Whether the endpoint has public addresses. Nodes never have."
  type        = bool
  default     = false
}

variable "client_cidrs" {
  description = "Addresses that may use the endpoint; 0.0.0.0/0 for a public one."
  type        = list(string)
}

variable "operator_cidrs" {
  description = "Private addresses that may reach the head by SSH, such as a VPN's."
  type        = list(string)
  default     = []
}

variable "nat_gateway" {
  description = "Whether nodes may reach the internet by HTTPS, for models from a hub or packages at start."
  type        = bool
  default     = false
}

variable "peer_networks" {
  description = "By region: addresses from which its gateways come to this endpoint, and a VPC peering connection by which this region's reach them. Without one they are public (its output nat_cidrs), and nat_gateway is the way there."
  type        = map(object({ cidr_blocks = list(string), connection_id = optional(string) }))
  default     = {}

  validation {
    condition     = alltrue([for cidr in flatten(values(var.peer_networks)[*].cidr_blocks) : can(cidrnetmask(cidr)) && cidr != var.cidr_block])
    error_message = "peer_networks.cidr_blocks: allowed: IPv4 ranges, other than this region's cidr_block."
  }
}

variable "key_name" {
  description = "The key pair by which `raylane deploy` reaches the head. With it, an Auto Scaling group of one keeps the head."
  type        = string
  default     = null
}

variable "ssh_user" {
  description = "The spec's ssh_user."
  type        = string
  default     = "ubuntu"
}

variable "alarm_topic_arns" {
  description = "SNS topics that hear of alarms."
  type        = list(string)
  default     = []
}

variable "tags" {
  description = "Further tags of instances and disks; those of all else are the provider's default_tags."
  type        = map(string)
  default     = {}
}

variable "certificate_arn" {
  description = "The endpoint's certificate, from ACM, in this region."
  type        = string
}

variable "gateway" {
  description = "What the spec says of gateways (modules/endpoint)."
  type = object({
    port    = optional(number, 8000)
    total_s = optional(number, 600)
    drain_s = optional(number, 10)
    tls     = optional(bool, false)
  })
  default = {}
}

variable "peers" {
  description = "Whether cells of other regions reach the gateways through the endpoint (modules/endpoint)."
  type        = bool
  default     = false

  validation {
    condition     = !var.peers || var.nat_gateway || anytrue([for peer in values(var.peer_networks) : peer.connection_id != null])
    error_message = "peers: needs a way to the other regions: nat_gateway (public endpoints), or peer_networks with a connection_id."
  }
}

variable "artifact_prefix" {
  description = "What nodes may read of the region's bucket."
  type        = string
  default     = "models"
}

variable "pools" {
  description = "Kinds of nodes (modules/capacity)."
  type = map(object({
    kind           = string
    instance_type  = string
    image_id       = string
    market         = optional(string, "on-demand")
    reservation_id = optional(string)
    root_device    = optional(string, "/dev/sda1")
    disk_gib       = optional(number, 200)
    disk_iops      = optional(number, 3000)
    disk_mib_per_s = optional(number, 250)
  }))
}

variable "repository_arns" {
  description = "ECR repositories that nodes may pull images from."
  type        = list(string)
  default     = []
}

variable "elb_log_account_id" {
  description = "The account that delivers load balancers' logs in older regions (modules/artifacts)."
  type        = string
  default     = null
}

variable "deletion_protection" {
  description = "Whether the load balancer resists its removal."
  type        = bool
  default     = true
}

variable "web_acl_arn" {
  description = "A web ACL (WAF) to put in front of the endpoint."
  type        = string
  default     = null
}
