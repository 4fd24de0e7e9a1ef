"""Stand-ins for Slurm's commands: real programs, over a folder with a file for each task."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

_PROGRAM = """\
#!/bin/sh
# A file of jobs/ is a task, named as Slurm names it: state, starts after the first, reason, priority lost.
at=FOLDER
name=${0##*/}
if [ "$name" = sacct ]; then echo "Slurm accounting storage is disabled" >&2; exit 1; fi
if [ "$name" = squeue ]; then
  for file in "$at"/jobs/*; do
    IFS='|' read -r state restarts reason nice < "$file"
    case "$*" in *PriorityLong*) [ "$reason" = JobHeldUser ] && echo 0 || echo 9; continue;; esac
    id=${file##*/} task=N/A code=0
    case $id in *_*) task=${id#*_} id=${id%_*};; esac
    [ "$state" = FAILED ] && code=768
    echo "$id|$task|$state|$code|$restarts|1700000000|1700000060|n1|$reason||"
  done
  exit
fi
echo "$name $*" >> "$at/told"
order=$name
[ "$1" = --batch ] && order=save
[ "$name" = scontrol ] && order=$1
for id; do :; done
if [ "$order" = update ]; then less=${id#Nice=} id=${2#JobId=}; fi
code=1
for file in "$at/jobs/$id" "$at/jobs/$id"_*; do
  [ -e "$file" ] || continue
  IFS='|' read -r state restarts reason nice < "$file"
  case "$order $state" in
    "scancel PENDING"|"scancel RUNNING") state=CANCELLED;;
    "scancel "*) ;;
    "save RUNNING"|"requeue FAILED") state=PENDING restarts=$((restarts + 1)) reason=BeginTime;;
    "uhold PENDING") reason=JobHeldUser;;
    "release PENDING") reason=Priority;;
    "update PENDING") nice=$less;;
    *) echo "$name: Requested operation is presently disabled" >&2; continue;;
  esac
  echo "$state|$restarts|$reason|$nice" > "$at/new" && mv "$at/new" "$file" && code=0
done
exit $code
"""


class StandInSlurm:
    """Slurm as its commands in `bin` tell it, which must come first on PATH."""

    def __init__(self, folder: Path) -> None:
        self.bin, self._jobs, self._told = folder / "bin", folder / "jobs", folder / "told"
        self.bin.mkdir(parents=True)
        for name in ("squeue", "sacct", "scancel", "scontrol"):
            (self.bin / name).write_text(_PROGRAM.replace("FOLDER", str(folder)))
            (self.bin / name).chmod(0o755)

    def has(self, external: str, states: Sequence[str], reason: str = "Priority") -> None:
        """Forget all jobs, and know one in these states."""
        shutil.rmtree(self._jobs, ignore_errors=True)
        self._told.unlink(missing_ok=True)
        self._jobs.mkdir()
        for task, state in enumerate(states):
            name = f"{external}_{task}" if len(states) > 1 else external
            (self._jobs / name).write_text(f"{state}|0|{reason}|0\n")

    def tasks(self) -> list[tuple[str, int, str, int]]:
        """State, starts after the first, reason and priority lost of each task."""
        rows = [path.read_text().strip().split("|") for path in sorted(self._jobs.iterdir())]
        return [(state, int(restarts), reason, int(nice)) for state, restarts, reason, nice in rows]

    def told(self) -> list[str]:
        """What Slurm was told to do, in order."""
        return self._told.read_text().splitlines() if self._told.exists() else []
