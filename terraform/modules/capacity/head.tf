# The head, kept by an Auto Scaling group of one: an instance that takes the place of another has the same address and
# the same disk, and starts the head from it (head.sh). Address and disk are in one zone.

resource "aws_network_interface" "head" {
  count = var.head_address == null ? 0 : 1

  subnet_id       = var.head_address.subnet_id
  security_groups = var.security_group_ids.head
  tags            = merge(local.tags, { Name = "${var.name}-head" })
}

resource "aws_ebs_volume" "head" {
  count = var.head_address == null ? 0 : 1

  availability_zone = var.head_address.availability_zone
  encrypted         = true
  kms_key_id        = var.key_arn
  type              = "gp3"
  size              = 20
  final_snapshot    = true # Ray's state, operators' orders, bills
  tags              = merge(local.tags, { Name = "${var.name}-head" })
}

resource "aws_autoscaling_group" "head" {
  count = var.head_address == null ? 0 : 1

  name                      = "${var.name}-head"
  min_size                  = 1
  max_size                  = 1
  desired_capacity          = 1
  availability_zones        = [var.head_address.availability_zone] # no subnet: the network interface has one
  health_check_type         = "EC2"
  enabled_metrics           = ["GroupInServiceInstances"]
  wait_for_capacity_timeout = "0"

  launch_template {
    id      = aws_launch_template.pool[local.kept].id
    version = "$Latest"
  }

  # By these Ray's launcher and autoscaler know it.
  dynamic "tag" {
    for_each = merge(local.tags, {
      Name               = "${var.name}-head"
      ray-cluster-name   = var.cluster
      ray-node-type      = "head"
      ray-user-node-type = "head"
      ray-node-name      = "ray-${var.cluster}-head"
    })

    content {
      key                 = tag.key
      value               = tag.value
      propagate_at_launch = true
    }
  }
}
