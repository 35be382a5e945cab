#!/bin/sh
# The first process of a node: makes the node's own view of the machine, then waits and reaps.
#     node-init.sh FOLDER NAME
# Runs in new mount, network, PID and UTS namespaces, so all of it goes with its last process.
set -eu
folder=$1
hostname "$2"
ip link set lo up

# The folders that a node's programs write, at their usual places.
mount --bind "$folder/lib" /var/lib
mount --bind "$folder/log" /var/log
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/containerd

# /sys of the node's own network, with the machine's cgroups in it.
mkdir /run/cgroup
mount --rbind /sys/fs/cgroup /run/cgroup
mount -t sysfs sysfs /sys
mount --move /run/cgroup /sys/fs/cgroup

# A machine of its own: a boot id that changes with each start, and no sysctl of the real machine that the kubelet
# would set (it finds the values that it wants).
cover() { mount --bind "$1" "$2"; }
cat /proc/sys/kernel/random/uuid >"$folder/boot_id"
cover "$folder/boot_id" /proc/sys/kernel/random/boot_id
for pair in vm/overcommit_memory:1 vm/panic_on_oom:0 kernel/panic:10 kernel/panic_on_oops:1 \
    kernel/keys/root_maxkeys:1000000 kernel/keys/root_maxbytes:25000000; do
    [ -e "/proc/sys/${pair%%:*}" ] || continue
    own=$folder/sysctl-$(echo "${pair%%:*}" | tr / -)
    echo "${pair#*:}" >"$own"
    cover "$own" "/proc/sys/${pair%%:*}"
done
if [ -e /etc/machine-id ]; then cover "$folder/machine-id" /etc/machine-id; fi
cover "$folder/hosts" /etc/hosts
: >"$folder/kmsg" # the kernel's log begins anew with each boot
if [ -e /dev/kmsg ]; then cover "$folder/kmsg" /dev/kmsg; fi

touch "$folder/up"
while :; do
    sleep infinity &
    wait
done
