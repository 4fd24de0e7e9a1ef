"""What a division of a network costs, as `cingulum plan` says, in a process that may load TensorFlow."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from trainer.errors import CingulumError, JobError

LIMIT_S = 120.0
# It takes a core and a GiB: one at a time, behind everything else on a login node.
_ONE = threading.Lock()


class BusyError(CingulumError, code="BUSY"):
    """Another plan is made at this moment."""


def of(config: Path, overrides: Sequence[str], ranks: int) -> str:
    """Return what `cingulum plan` prints of a configuration on `ranks` ranks.

    Raises:
        BusyError: another plan is being made.
        JobError: it cannot be planned, or not within LIMIT_S.
    """
    if not _ONE.acquire(blocking=False):
        raise BusyError("Another plan is being made.", cure="Try again when it is there.")
    words = [sys.executable, "-m", "cingulum", "plan", "--ranks", str(ranks), "--", str(config), *overrides]
    try:
        done = subprocess.run(
            ["nice", "-n", "10", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
            check=False,
            env={**os.environ, "NO_COLOR": "1", "COLUMNS": "100"},
        )
    except subprocess.TimeoutExpired:
        raise JobError(f"The plan took more than {LIMIT_S:.0f} s.", cure="Run `cingulum plan`.") from None
    finally:
        _ONE.release()
    if done.returncode != 0:
        said = done.stderr.strip().removeprefix("error: ").split("\n  ", 1)
        raise JobError(said[0] or "It cannot be planned.", cure=said[1] if len(said) > 1 else None)
    return done.stdout
