"""Run mpirun for processes of which some may die, and end it when the run itself reports its end.

    python -m jobs.local.surviving mpirun -np 4 ... cingulum train CONFIG

With `orte_enable_recovery` (Open MPI 5: `state_base_recoverable`), Open MPI lets the others live when one
is killed or a host is lost, but on several hosts it then waits for ever for those that are gone, and it
loses the exit code. So the main process of an asynchronous run writes its exit code into the file that
CINGULUM_END_FILE names, in the folder to run in; this program waits for that, ends mpirun, and exits with
the code. Figures and reasons: docs/decisions/0022-asynchronous.md.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

END_FILE = "CINGULUM_END_FILE"
FLAGS = ("--mca", "orte_enable_recovery", "1", "-x", END_FILE)
# The same for Open MPI 5, which passes over the option.
RECOVERY = {"PRTE_MCA_state_base_recoverable": "1"}
# How long mpirun may take to end by itself, and then to obey.
_GRACE_S = 5.0
_LOOK_S = 0.1


def line(mpirun_line: Sequence[str]) -> list[str]:
    """Return the command that runs a line of mpirun in this way (pure but for the path of Python)."""
    return [sys.executable, "-m", "jobs.local.surviving", *mpirun_line]


def main(words: Sequence[str]) -> int:
    """Run an mpirun command; return the run's own exit code, or mpirun's where the run left none."""
    end_file = Path.cwd() / f".cingulum-end-{secrets.token_hex(4)}"
    program, *rest = words
    environment = {**os.environ, **RECOVERY, END_FILE: str(end_file)}
    process: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        if process is None:
            early.append(number)
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)

    # Before mpirun is there: a signal that came between the two would end this program, and mpirun go on.
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    process = subprocess.Popen([program, *FLAGS, *rest], env=environment)
    for missed in early:
        pass_on(missed, None)
    try:
        while process.poll() is None and _code(end_file) is None:
            time.sleep(_LOOK_S)
        code = _code(end_file)
        _end(process)
        if code is None:
            code = _code(end_file)
        return process.returncode if code is None else code
    finally:
        end_file.unlink(missing_ok=True)


def _code(told: Path) -> int | None:
    try:
        return int(told.read_text())
    except (OSError, ValueError):
        return None


def _end(process: subprocess.Popen[bytes]) -> None:
    for end in (lambda: None, process.terminate, process.kill):
        end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
            return


if __name__ == "__main__":
    found = main(sys.argv[1:])
    sys.exit(found if found >= 0 else 128 - found)
