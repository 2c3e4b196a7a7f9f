#!/bin/sh
# Run by cloud-init on a gateway's node, at its first start. The image needs curl and the AWS CLI.
set -eu
metadata=http://169.254.169.254/latest
token=$(curl -sfX PUT "$metadata/api/token" -H "X-aws-ec2-metadata-token-ttl-seconds: 60")
instance=$(curl -sf -H "X-aws-ec2-metadata-token: $token" "$metadata/meta-data/instance-id")
# A role that is seconds old, or an API that is busy: a gateway without the load balancer would stand idle.
until aws elbv2 register-targets --region "${region}" --target-group-arn "${target_group_arn}" --targets "Id=$instance"; do
    sleep 10
done
