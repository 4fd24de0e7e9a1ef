#!/bin/bash
# Process 1 of a testbed. It holds the switch's network namespace, starts the hosts whose names come through
# the fifo, and reaps what they leave. When it dies, the kernel ends every process of the testbed with it.
#   testbed-init.sh FOLDER
set -eu
folder=$1
here=$(cd "$(dirname "$0")" && pwd)
exec 3<>"$folder/boot"
read -r pid _ </proc/self/stat # our number outside: /proc is still the machine's
echo "$pid" >"$folder/pids/switch.new"
mv "$folder/pids/switch.new" "$folder/pids/switch"
while read -r host <&3; do
  CINGULUM_TESTBED_HOST=$host setsid \
    unshare --mount --uts --ipc --net --pid --fork --kill-child=KILL bash "$here/host-init.sh" "$folder" "$host" \
    </dev/null >"$folder/log/init.$host.log" 2>&1 3>&- &
done
