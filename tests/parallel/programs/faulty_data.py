"""`cingulum train` with a fault put into the shards, or into one rank's reading of them, at one step.

    python faulty_data.py FAULT RANK STEP CONFIG SHARD [arguments of cingulum train ...]

FAULT: none; cut, remove, replace (what becomes of the file SHARD); broken, hanging (all reads from
then on); passing (from the start every third read fails twice with EIO). STEP counts updates from 1.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from pathlib import Path

fault, at_rank, at_step, config, shard = (
    sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], Path(sys.argv[5])
)  # fmt: skip
plain = os.preadv
reads = 0


def main() -> int:
    from cingulum.cli import app
    from trainer import quiet
    from trainer.ranks import starting

    quiet.leave_out_what_keras_can_do_without()
    world = starting.init(1)
    from trainer.data.shards import stored_bytes
    from trainer.runs.loop import Training

    if world.rank == at_rank:
        if fault == "passing":
            stored_bytes.PAUSES_S = (0.01, 0.01)
            os.preadv = fail_now_and_then
        elif fault != "none":
            step = Training._step

            def stepping(self, source):
                seconds = step(self, source)
                if self.cursor.step == at_step:
                    strike()
                return seconds

            Training._step = stepping
    return app.run(["train", config, *sys.argv[6:]])


def strike() -> None:
    (shard.parents[1] / "struck").touch()
    content = shard.read_bytes()
    if fault == "cut":
        os.truncate(shard, len(content) // 2)
    elif fault == "remove":
        shard.unlink()
    elif fault == "replace":
        other = shard.with_name("other")
        other.write_bytes(bytes(reversed(content)))
        other.rename(shard)
    elif fault == "broken":
        os.preadv = broken
    elif fault == "hanging":
        os.preadv = lambda *_: time.sleep(600)
    else:
        raise SystemExit(f"unknown fault {fault}")


def broken(*_) -> int:
    raise OSError(errno.EIO, "Input/output error")


def fail_now_and_then(descriptor, buffers, offset) -> int:
    global reads
    reads += 1
    if reads % 9 in (3, 4):
        raise OSError(errno.EIO, "Input/output error")
    return plain(descriptor, buffers, offset)


if __name__ == "__main__":
    sys.exit(main())
