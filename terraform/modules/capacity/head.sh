#!/bin/sh
# Run by cloud-init on the head's instance, at its first start. The image needs curl and the AWS CLI.
set -eu
metadata=http://169.254.169.254/latest
token=$(curl -sfX PUT "$metadata/api/token" -H "X-aws-ec2-metadata-token-ttl-seconds: 60")
instance=$(curl -sf -H "X-aws-ec2-metadata-token: $token" "$metadata/meta-data/instance-id")
# The instance before may still have the disk.
until aws ec2 attach-volume --region "${region}" --volume-id "${volume_id}" --instance-id "$instance" --device /dev/sdf; do
    sleep 5
done
disk=/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_${replace(volume_id, "-", "")}
until [ -b "$disk" ]; do sleep 1; done
[ -n "$(blkid -p -o value -s TYPE "$disk")" ] || mkfs.ext4 -q "$disk"
home=$(getent passwd "${ssh_user}" | cut -d: -f6)
mkdir -p "$home/.raylane"
echo "$disk $home/.raylane ext4 defaults,nofail 0 2" >> /etc/fstab
mount "$home/.raylane"
chown "${ssh_user}:" "$home/.raylane"
# Nothing has been deployed, or `raylane deploy --down` has ended it.
service=$home/.raylane/${cluster}/node/install-head-service
[ -f "$service" ] || exit 0
sudo -H -u "${ssh_user}" RAY_enable_autoscaler_v2=1 RAY_CLOUD_INSTANCE_ID="$instance" RAY_NODE_TYPE_NAME=head sh "$service"
