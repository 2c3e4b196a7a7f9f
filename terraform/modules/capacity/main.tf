# One launch template for each pool of nodes. Terraform starts none of them: Ray's launcher and its autoscaler do.

data "aws_region" "current" {}

locals {
  # The head's pool, where an Auto Scaling group keeps it.
  kept = var.head_address == null ? null : one([for name, pool in var.pools : name if pool.kind == "head"])
  tags = merge(var.tags, { raylane-cluster = var.cluster })
  user_data = {
    head = var.head_address == null ? null : base64encode(templatefile("${path.module}/head.sh", {
      region    = data.aws_region.current.region
      cluster   = var.cluster
      ssh_user  = var.ssh_user
      volume_id = aws_ebs_volume.head[0].id
    }))
    # A gateway's node joins the target group when it starts. An instance that ends leaves it by itself.
    gateway = base64encode(templatefile("${path.module}/register.sh", {
      region           = data.aws_region.current.region
      target_group_arn = var.target_group_arn
    }))
    worker = base64encode(templatefile("${path.module}/nvme.sh", { ssh_user = var.ssh_user }))
  }
}

resource "aws_launch_template" "pool" {
  for_each = var.pools

  name                   = "${var.name}-${each.key}"
  description            = "${each.value.kind} of ${var.name}, pool ${each.key}"
  image_id               = each.value.image_id
  instance_type          = each.value.instance_type
  ebs_optimized          = true
  vpc_security_group_ids = each.key == local.kept ? null : var.security_group_ids[each.value.kind]
  key_name               = each.key == local.kept ? var.key_name : null
  user_data              = local.user_data[each.value.kind]
  update_default_version = true
  tags                   = merge(local.tags, { raylane-pool = each.key })

  # The head's address is its network interface's, whichever instance has it.
  dynamic "network_interfaces" {
    for_each = each.key == local.kept ? [1] : []

    content {
      network_interface_id = aws_network_interface.head[0].id
      device_index         = 0
    }
  }

  iam_instance_profile {
    arn = var.instance_profile_arns[each.value.kind]
  }

  # Version 2 alone: a request that a server is tricked into cannot read the role's credentials.
  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
    instance_metadata_tags      = "disabled"
  }

  block_device_mappings {
    device_name = each.value.root_device

    ebs {
      encrypted             = "true"
      kms_key_id            = var.key_arn
      volume_type           = "gp3"
      volume_size           = each.value.disk_gib
      iops                  = each.value.disk_iops
      throughput            = each.value.disk_mib_per_s
      delete_on_termination = "true"
    }
  }

  dynamic "instance_market_options" {
    for_each = each.value.market == "on-demand" ? [] : [each.value.market]

    content {
      market_type = instance_market_options.value

      dynamic "spot_options" {
        for_each = each.value.market == "spot" ? [1] : []

        content {
          spot_instance_type             = "one-time"
          instance_interruption_behavior = "terminate"
        }
      }
    }
  }

  dynamic "capacity_reservation_specification" {
    for_each = each.value.reservation_id == null ? [] : [each.value.reservation_id]

    content {
      capacity_reservation_target {
        capacity_reservation_id = capacity_reservation_specification.value
      }
    }
  }

  monitoring {
    enabled = true
  }

  tag_specifications {
    resource_type = "instance"
    tags          = merge(local.tags, { raylane-pool = each.key })
  }

  tag_specifications {
    resource_type = "volume"
    tags          = merge(local.tags, { raylane-pool = each.key })
  }
}
