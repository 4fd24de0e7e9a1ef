"""Trainings one after the other, each slowed on purpose in one way; run under mpirun by the tests.

    python slowed_train.py HOW CONFIG [HOW CONFIG ...]

HOW, of the last rank alone: none; reading (each read of a shard takes 0.3 s longer: a slow disk); rank (it
is stopped nine tenths of the time while it trains, as a CPU quota does).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

QUOTA = 'while [ -e "$1" ]; do kill -STOP "$2"; sleep 0.09; kill -CONT "$2"; sleep 0.01; done'
READ_S = 0.3

plain_read = os.preadv


def main() -> int:
    from cingulum.cli import app
    from trainer import quiet
    from trainer.ranks import launch, starting
    from trainer.ranks.members import Members

    quiet.leave_out_what_keras_can_do_without()
    world = starting.init(1, members=Members(messages=launch.expected_size() > 1))
    from trainer.runs.loop import Training

    is_last = world.rank == world.size - 1
    plain_run = Training.run
    for how, config in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
        os.preadv = slow_read if how == "reading" and is_last else plain_read
        Training.run = under_quota(plain_run, config) if how == "rank" and is_last else plain_run
        code = app.run(["train", config])
        if code:
            return code
    return 0


def slow_read(*arguments) -> int:
    time.sleep(READ_S)
    return plain_read(*arguments)


def under_quota(plain, config):
    on = Path(f"{config}.slowed")

    def run(self, batches) -> None:
        on.touch()
        with subprocess.Popen(["sh", "-c", QUOTA, "sh", str(on), str(os.getpid())]):
            try:
                plain(self, batches)
            finally:
                on.unlink()  # then the quota ends by itself, after letting us go on

    return run


if __name__ == "__main__":
    sys.exit(main())
