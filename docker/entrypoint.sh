#!/bin/bash
# What a container runs: the program that the first word names, else the command of cingulum that it names.
#
#   docker run cingulum train my-run.yaml
#   docker run cingulum mpirun -np 2 cingulum train my-run.yaml
set -eu

# `docker run --user` with a uid that the image does not know leaves a HOME that is not the caller's.
if [[ ! -w ${HOME:-/} || ${HOME:-/} == / ]]; then
  HOME=$(mktemp -d -t home-XXXXXX)
  export HOME
fi

# Programs only: `export` and `wait` are commands of cingulum and of the shell alike. exec: signals reach the program itself.
if [[ $# -gt 0 ]] && type -P -- "$1" >/dev/null; then
  exec "$@"
fi
exec cingulum "$@"
