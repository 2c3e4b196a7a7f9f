#!/bin/sh
# Run by cloud-init on a worker, at its first start: models and what engines compiled are on the instance's own disks.
set -eu
disks=$(lsblk -dnpo NAME,MODEL | awk '/Instance Storage/ {print $1}')
[ -n "$disks" ] || exit 0
folder=$(getent passwd "${ssh_user}" | cut -d: -f6)/.cache/raylane
disk=$(echo "$disks" | head -n 1)
if [ "$(echo "$disks" | wc -l)" -gt 1 ] && command -v mdadm > /dev/null; then
    # shellcheck disable=SC2086
    mdadm --create --run /dev/md0 --level 0 --raid-devices "$(echo "$disks" | wc -l)" $disks
    disk=/dev/md0
fi
mkfs.ext4 -q -E nodiscard "$disk"
mkdir -p "$folder"
mount -o noatime "$disk" "$folder"
chown "${ssh_user}:" "$folder" "$(dirname "$folder")"
