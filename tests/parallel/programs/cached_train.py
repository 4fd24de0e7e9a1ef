"""`cingulum train` that counts what each rank reads of the shard set's own folder.

    python cached_train.py COUNTS SHARDS SCRATCH CONFIG [arguments of cingulum train ...]

Writes COUNTS-<rank>.json: `copied`, bytes read while copying, and `read`, bytes read while training. SCRATCH
is the folder for each rank's scratch, in which `{rank}` stands for the rank: ranks with different ones are
like ranks of different hosts.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

counts, shards, scratch = sys.argv[1], Path(sys.argv[2]), sys.argv[3]


def main() -> int:
    from cingulum.cli import app
    from trainer import quiet
    from trainer.ranks import starting

    quiet.leave_out_what_keras_can_do_without()
    world = starting.init(1)
    os.environ["CINGULUM_SCRATCH"] = scratch.format(rank=world.rank)
    from trainer.data.loading import scratch_copy
    from trainer.data.shards.stored_bytes import StoredBytes
    from trainer.runs.loop import Training

    found = {"copied": 0, "read": 0}
    plain_copy, plain_read, plain_run = scratch_copy._read_into, StoredBytes.read_into, Training.run

    def copying(buffer, file, source):
        count = plain_copy(buffer, file, source)
        found["copied"] += count if source.parent == shards else 0
        return count

    def reading(self, shard, offset, target):
        plain_read(self, shard, offset, target)
        found["read"] += len(target) if self.folder == shards else 0

    def training(self, batches):
        found["read"] = 0
        plain_run(self, batches)
        # What comes later, such as the report, opens the set where it is.
        Path(f"{counts}-{world.rank}.json").write_text(json.dumps(found))

    scratch_copy._read_into, StoredBytes.read_into, Training.run = copying, reading, training
    return app.run(["train", *sys.argv[4:]])


if __name__ == "__main__":
    sys.exit(main())
