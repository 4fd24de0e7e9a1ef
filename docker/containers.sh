#!/usr/bin/env bash
# Run a command on the ranks of several containers of this host, which reach one another by ssh.
#
#   docker/containers.sh IMAGE CONTAINERS RANKS COMMAND...
#   docker/containers.sh cingulum:ssh 2 1 cingulum train my-run.yaml --resume
#
# RANKS is the number in each container. The command runs in the working folder, which all containers see at its own
# path; folders in $CINGULUM_DATA (separated by colons) are shown read-only. SIGUSR2 and SIGTERM go to mpirun, its exit
# code is ours (2: what was given cannot be used), and containers, network and keys are gone afterwards. After a kill -9
# of this script, what it left is in
#   docker ps --all --filter label=cingulum.run
#   docker network ls --filter label=cingulum.run
# and the keys, which nothing uses then, in a folder of yours in $TMPDIR.
set -euo pipefail

# fail MESSAGE [EXIT CODE]
fail() {
  echo "containers.sh: $1" >&2
  exit "${2:-2}"
}

# A value of --mount is a line with commas between its fields.
check_folder() {
  [[ $1 == /* && $1 != *[,\"$'\n']* ]] || fail "Docker cannot mount this, for want of / or for a comma, quote or newline: $1"
}

(($# >= 4)) || fail "usage: containers.sh IMAGE CONTAINERS RANKS COMMAND..."
image=$1 count=$2 ranks=$3
shift 3
[[ $count =~ ^[1-9][0-9]*$ && $ranks =~ ^[1-9][0-9]*$ ]] || fail "CONTAINERS and RANKS are whole numbers from 1."
[[ $image != -* ]] || fail "$image is an option, and no image."
check_folder "$PWD"
[[ ${CINGULUM_DATA:-} != *$'\n'* ]] || fail "CINGULUM_DATA holds a newline."
IFS=: read -r -a data <<<"${CINGULUM_DATA:-}"
user=${SUDO_UID:-$(id -u)} group=${SUDO_GID:-$(id -g)}
((user != 0)) || fail "the containers' ssh server runs as an ordinary user: start this as one."
docker=${CINGULUM_DOCKER:-docker}

run=cingulum-$$-$RANDOM
shared=$(mktemp -d)
# Called by the trap.
# shellcheck disable=SC2329
clean_up() {
  trap '' HUP INT TERM USR2
  # Whatever Docker says, the keys go, and the exit code stays.
  local left
  left=$("$docker" ps --all --quiet --filter "label=cingulum.run=$run") || true
  # One word per container.
  # shellcheck disable=SC2086
  [[ -z $left ]] || "$docker" rm --force $left >/dev/null || true
  "$docker" network rm "$run" >/dev/null 2>&1 || true
  rm -rf "$shared"
}
trap clean_up EXIT

# Keys are made in here by the containers. ssh asks for the user's name and shell, which no image can know.
mkdir -m 0700 "$shared/ssh"
printf '%s\n' 'root:x:0:0:root:/root:/usr/sbin/nologin' "cingulum:x:$user:$group::/tmp:/bin/bash" >"$shared/passwd"
chown -R "$user:$group" "$shared"

options=(
  --pull=never # what is not here may be anybody's in a registry
  --init --label "cingulum.run=$run" --network "$run" --user "$user:$group"
  --cap-drop=ALL --security-opt=no-new-privileges
  --shm-size "$((256 * (ranks + 1)))m" # of the ranks; Docker's default is 64 MiB
  --mount "type=bind,source=$shared/passwd,target=/etc/passwd,readonly"
  --mount "type=bind,source=$shared/ssh,target=/run/cingulum-ssh"
  --mount "type=bind,source=$PWD,target=$PWD" --workdir "$PWD"
)
for folder in "${data[@]}"; do
  [[ -n $folder ]] || continue
  check_folder "$folder"
  options+=(--mount "type=bind,source=$folder,target=$folder,readonly")
done

"$docker" network create --label "cingulum.run=$run" "$run" >/dev/null
hosts=()
for ((number = 1; number <= count; number++)); do
  name=$run-$number
  "$docker" run --detach --name "$name" --hostname "$name" "${options[@]}" "$image" >/dev/null
  hosts+=("$name:$ranks")
done

# Every container has told the others its key.
deadline=$((SECONDS + 60))
until [[ -e $shared/ssh/known_hosts && $(wc -l <"$shared/ssh/known_hosts") -ge $count ]]; do
  for ((number = 1; number <= count; number++)); do
    if [[ $("$docker" inspect --format '{{.State.Running}}' "$run-$number") != true ]]; then
      "$docker" logs "$run-$number" >&2
      fail "container $run-$number has ended." 1
    fi
  done
  ((SECONDS < deadline)) || fail "not all of $count containers have an ssh server after 60 s." 1
  sleep 0.2
done

listed=$(IFS=,; echo "${hosts[*]}")
"$docker" run --name "$run-mpirun" --hostname "$run-mpirun" "${options[@]}" "$image" \
  mpirun --host "$listed" --bind-to none "$@" &
mpirun=$!
# A signal for us ends `wait`, not mpirun, which may have ended already.
trap 'told=1; kill -USR2 "$mpirun" 2>/dev/null || true' USR2
trap 'told=1; kill -TERM "$mpirun" 2>/dev/null || true' TERM INT
told=1
while ((told)); do
  told=0 code=0
  wait "$mpirun" || code=$?
done
# After a signal in the very moment of mpirun's end, bash does not know how it ended; Docker does.
((code >= 0 && code != 127)) || code=$("$docker" inspect --format '{{.State.ExitCode}}' "$run-mpirun")
exit "$code"
