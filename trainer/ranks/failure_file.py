"""What a rank that fails leaves for whoever looks after its job: a file, so that nobody has to read it out of
what all ranks have printed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import threading
import time
from pathlib import Path

from trainer import atomic
from trainer.batch_environment import RESTART_COUNTS

# Names the folder of this start; without it nobody wants to know.
FOLDER = "CINGULUM_FAILURES"
_PATIENCE_S = 5.0


def leave(message: str, *, kind: str, exit_code: int, name: str = "") -> None:
    """Write down why this process ends; what it said first is what stays. Never raises.

    Args:
        message: as people are told it.
        kind: class of the error, such as TrainingError.
        exit_code: of the process.
        name: who failed, where it has one of several: "rank 2 @ n3"; the host may be another than this one,
            which another rank misses.
    """
    if not (folder := os.environ.get(FOLDER)):
        return
    who, _, host = name.partition(" @ ")
    here = socket.gethostname()
    record = {
        "who": who,
        "host": host or here,
        "exit_code": exit_code,
        "kind": kind,
        "message": message,
        "start": 1
        + next((int(os.environ[key]) for key in RESTART_COUNTS if os.environ.get(key, "").isdigit()), 0),
        "time": time.time(),
    }
    path = Path(folder) / f"{re.sub('[^A-Za-z0-9.-]', '_', here)}-{os.getpid()}.json"

    def write() -> None:
        # A full disk, a folder that this host does not see: what it printed tells it, too.
        with contextlib.suppress(OSError):
            if not path.exists():
                atomic.write_text(path, json.dumps(record) + "\n")

    # Storage that does not answer must not keep a rank from its end.
    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    writer.join(_PATIENCE_S)
