#!/bin/bash
# Serve ssh as the container's own user, for containers that share the folder /run/cingulum-ssh.
#
# The folder belongs to one user (mode 0700) and to one run. The first container makes the users' key in it; each adds
# its own host key under its host name, and the names in CINGULUM_SSH_NAMES (separated by spaces), so that no
# connection is ever trusted unseen.
# All keys are made here, at the start, and none is in the image.
set -euo pipefail

shared=/run/cingulum-ssh
own=/tmp/cingulum-sshd

fail() {
  echo "cingulum-sshd: $1" >&2
  exit 2
}

[[ -d $shared && -w $shared ]] ||
  fail "$shared is not there or cannot be written: mount a folder of your own (mode 0700) there."
id -un >/dev/null 2>&1 ||
  fail "user $(id -u) has no name in here, and ssh needs one: mount a passwd file, as docker/containers.sh does."

umask 077
mkdir -p "$own"
rm -f "$own/host_key" "$own/host_key.pub"
ssh-keygen -q -t ed25519 -N '' -C '' -f "$own/host_key"

exec 9>"$shared/lock"
flock 9
if [[ ! -e $shared/authorized_keys ]]; then
  rm -f "$shared/id_ed25519" "$shared/id_ed25519.pub"
  ssh-keygen -q -t ed25519 -N '' -C cingulum -f "$shared/id_ed25519"
  cp "$shared/id_ed25519.pub" "$shared/authorized_keys"
fi
read -r kind key _ <"$own/host_key.pub"
for name in "$(hostname)" ${CINGULUM_SSH_NAMES:-}; do
  # The port is 2222: known_hosts names it beside the host.
  echo "[$name]:2222 $kind $key" >>"$shared/known_hosts"
done
exec 9>&-

exec /usr/sbin/sshd -D -e -f /opt/cingulum/etc/sshd_config
