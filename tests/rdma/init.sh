#!/bin/busybox sh
# First process of the virtual machine: puts the host's root, which is read-only, below a filesystem in memory, and goes
# on there with the script that the kernel's command line names.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
# The modules of a later need may want what an earlier one brings; one that the kernel has built in does not matter.
while read -r module; do $b insmod "/modules/$module" 2>/dev/null || echo "no module $module"; done </modules/order
$b mkdir -p /host /memory /new
$b mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288,cache=loose,ro host /host
$b mount -t tmpfs memory /memory
$b mkdir /memory/upper /memory/work
$b mount -t overlay -o lowerdir=/host,upperdir=/memory/upper,workdir=/memory/work new /new
for folder in proc sys dev; do $b mount --move "/$folder" "/new/$folder"; done
script=$($b sed -n 's/.*guest=\([^ ]*\).*/\1/p' /new/proc/cmdline)
exec $b switch_root /new /bin/sh "$script"
