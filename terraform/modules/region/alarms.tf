# What an operator is woken for; requests and replicas have alerts of their own (infra/alerts).

locals {
  load_balancer = { LoadBalancer = module.endpoint.arn_suffix, TargetGroup = module.endpoint.target_group_arn_suffix }
  alarms = merge({
    no-gateway = { namespace = "AWS/ApplicationELB", metric = "HealthyHostCount", dimensions = local.load_balancer, below = 1 }
    }, var.key_name == null ? {} : {
    no-head = { namespace = "AWS/AutoScaling", metric = "GroupInServiceInstances", dimensions = { AutoScalingGroupName = module.capacity.head_group }, below = 1 }
  })
}

resource "aws_cloudwatch_metric_alarm" "this" {
  for_each = local.alarms

  alarm_name          = "${var.name}-${each.key}"
  alarm_description   = "docs/joining.md, What breaks"
  namespace           = each.value.namespace
  metric_name         = each.value.metric
  dimensions          = each.value.dimensions
  statistic           = "Minimum"
  comparison_operator = "LessThanThreshold"
  threshold           = each.value.below
  period              = 60
  evaluation_periods  = 3
  treat_missing_data  = "breaching"
  alarm_actions       = var.alarm_topic_arns
  ok_actions          = var.alarm_topic_arns
}
