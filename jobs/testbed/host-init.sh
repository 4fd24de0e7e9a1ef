#!/bin/bash
# Process 1 of an emulated host, in namespaces of its own. It makes the host's private places, says that it is
# there, and reaps what daemons and jobs leave. Network and daemons are added from outside.
#   host-init.sh FOLDER HOST
set -eu
folder=$1 host=$2
read -r pid _ </proc/self/stat # our number outside: /proc is still the machine's
if [ -e "$folder/quotas/$host" ]; then echo 0 >"$(<"$folder/quotas/$host")"; fi
hostname "$host"

# The whole folder: a file that is laid over another falls off when that is replaced, as useradd does.
mount --bind "$folder/etc" /etc

# What all hosts must go on seeing may lie in a place that becomes private: hold it open across the change.
mapfile -d '' -t kept <"$folder/kept"
held=()
for path in "${kept[@]}"; do
  exec {handle}<"$path"
  held+=("$handle")
done
exec {cgroups}</sys/fs/cgroup

# Open MPI and PMIx name their folders by user and job: on a shared /tmp or /dev/shm two hosts would collide.
for place in /tmp /dev/shm; do mount -t tmpfs -o mode=1777 tmpfs "$place"; done
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/sshd /run/lock
mount -t sysfs sysfs /sys # of this network namespace, so that /sys/class/net is this host's
mount --no-canonicalize --rbind "/proc/self/fd/$cgroups" /sys/fs/cgroup
for number in "${!kept[@]}"; do
  path=${kept[$number]}
  mkdir -p "$path"
  mount --no-canonicalize --bind "/proc/self/fd/${held[$number]}" "$path"
  handle=${held[$number]}
  exec {handle}<&-
done
exec {cgroups}<&-

echo "$pid" >"$folder/pids/$host.new"
mount -t proc proc /proc
mv "$folder/pids/$host.new" "$folder/pids/$host"
ulimit -n 16384
while :; do
  sleep 3600 &
  wait $!
done
