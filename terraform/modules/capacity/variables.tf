variable "name" {
  description = "The cluster's name and the region's, as in every resource's name."
  type        = string
}

variable "cluster" {
  description = "The name of the Ray cluster: the value of the tag raylane-cluster."
  type        = string
}

variable "key_arn" {
  description = "The KMS key of the region."
  type        = string
}

variable "security_group_ids" {
  description = "The security groups of each kind of node."
  type = object({
    head    = list(string)
    gateway = list(string)
    worker  = list(string)
  })
}

variable "instance_profile_arns" {
  description = "The instance profile of each kind of node."
  type = object({
    head    = string
    gateway = string
    worker  = string
  })
}

variable "target_group_arn" {
  description = "The load balancer's target group, which gateways join."
  type        = string
}

variable "pools" {
  description = "Kinds of nodes. `market`: on-demand, spot, or capacity-block (which needs reservation_id). `reservation_id`: a capacity reservation, made elsewhere."
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

  validation {
    condition     = alltrue([for name in keys(var.pools) : can(regex("^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", name))])
    error_message = "pools: allowed names: up to 32 lower-case letters, digits and dashes, as in the spec."
  }
  validation {
    condition     = alltrue([for pool in values(var.pools) : contains(["head", "gateway", "worker"], pool.kind)])
    error_message = "pools.kind: allowed: head, gateway, worker."
  }
  validation {
    condition     = length([for pool in values(var.pools) : pool if pool.kind == "head"]) == 1
    error_message = "pools: exactly one has kind = \"head\"."
  }
  validation {
    condition     = length([for pool in values(var.pools) : pool if pool.kind == "gateway"]) >= 1 && length([for pool in values(var.pools) : pool if pool.kind == "worker"]) >= 1
    error_message = "pools: at least one has kind = \"gateway\", and one kind = \"worker\"; neither gateways nor replicas run on the head."
  }
  validation {
    condition     = alltrue([for pool in values(var.pools) : contains(["on-demand", "spot", "capacity-block"], pool.market)])
    error_message = "pools.market: allowed: on-demand, spot, capacity-block."
  }
  validation {
    condition     = alltrue([for pool in values(var.pools) : pool.kind == "worker" || pool.market != "spot"])
    error_message = "pools.market = \"spot\": allowed only for workers; a reclaimed head or gateway breaks requests."
  }
  validation {
    condition     = alltrue([for pool in values(var.pools) : pool.reservation_id == null ? pool.market != "capacity-block" : pool.market != "spot" && can(regex("^cr-[0-9a-f]{8,}$", pool.reservation_id))])
    error_message = "pools.reservation_id: allowed: cr-..., for on-demand and capacity-block; capacity-block needs one."
  }
  validation {
    condition     = alltrue([for pool in values(var.pools) : can(regex("^ami-[0-9a-f]{8,}$", pool.image_id))])
    error_message = "pools.image_id: allowed: the id of an image (ami-...), so that a pool's nodes are alike."
  }
}

variable "head_address" {
  description = "Where an Auto Scaling group keeps the head; null: Ray's launcher starts it."
  type        = object({ subnet_id = string, availability_zone = string })
  default     = null
}

variable "key_name" {
  description = "The key pair by which `raylane deploy` reaches the head that is kept."
  type        = string
  default     = null
}

variable "ssh_user" {
  description = "The spec's ssh_user."
  type        = string
  default     = "ubuntu"
}

variable "tags" {
  description = "Further tags of instances and disks."
  type        = map(string)
  default     = {}
}
