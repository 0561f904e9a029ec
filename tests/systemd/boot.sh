#!/bin/sh
# boot.sh ROOT SCRATCH CONSOLE, in new namespaces of all kinds but those of users and time: makes a machine of the folder
# ROOT, which stays as it is, and becomes its first process, systemd. Of this machine it sees the kernel, read-only.
set -eu
mount --make-rprivate /
mount -t tmpfs memory "$2"
mkdir "$2/upper" "$2/work" "$2/new"
mount -t overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" new "$2/new"
touch "$3"
cd "$2/new"
mount -t proc proc proc
mount -t sysfs -o ro sys sys
mount -t cgroup2 cgroup sys/fs/cgroup
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t tmpfs -o mode=755 devices dev
device() { mknod -m 666 "dev/$1" c "$2" "$3"; }
device null 1 3
device zero 1 5
device full 1 7
device random 1 8
device urandom 1 9
device tty 5 0
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 terminals dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
touch dev/console
mount --bind "$3" dev/console
mount -t tmpfs -o mode=755 run run
pivot_root . mnt
umount -l mnt
hostname node
ip link set lo up
exec env -i container=fabricd-check MARK="$MARK" PATH=/usr/sbin:/usr/bin:/sbin:/bin /sbin/init
