"""The ranks together read the set once per epoch, and no rank what another one reads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from conftest import Launch

from trainer.data.shards.index import SetMeta, VolumeMeta
from trainer.data.shards.shard_writer import ShardWriter
from trainer.data.shards.shards import ShardSet

VOLUMES, SHAPE, GLOBAL_BATCH = 24, (8, 8, 8, 1), 4


def test_two_ranks_read_disjoint_samples_and_together_the_set_once_per_epoch(
    launch: Launch, tmp_path: Path
) -> None:
    shards = noise(tmp_path / "shards")
    of_the_set = sum(volume.nbytes for volume in shards.volumes)
    for ranks, prefetch in ((2, 2), (1, 3)):
        outcome = launch(ranks, "reading.py", tmp_path / "shards", GLOBAL_BATCH, prefetch)
        assert outcome.exit_code == 0, outcome.err
        told = json.loads(outcome.out.splitlines()[-1])
        assert len(told) == ranks
        for epoch in (0, 1):
            rows = [set(of_rank["rows"][epoch]) for of_rank in told]
            assert sum(map(len, rows)) == VOLUMES
            assert set.union(*rows) == set(range(VOLUMES))
            assert sum(of_rank["bytes"][epoch] for of_rank in told) == of_the_set
            # Every volume has as many bytes, so each rank reads its share of them.
            assert {of_rank["bytes"][epoch] for of_rank in told} == {of_the_set // ranks}
        # The batch in use, and those read ahead.
        begun = (1 + prefetch) * GLOBAL_BATCH * of_the_set // VOLUMES
        assert sum(of_rank["begun"] for of_rank in told) == begun


def noise(path: Path) -> ShardSet:
    """A set whose volumes differ, and take as many bytes each."""
    random = np.random.default_rng(0)
    meta = SetMeta(label_name="row", source="made for a test", voxel_size=(1.0, 1.0, 1.0))
    writer = ShardWriter(path, SHAPE, "float16", "none", meta=meta)
    per_shard = 5
    writer.finish(
        [
            writer.write_shard(
                first // per_shard,
                [
                    (
                        random.normal(size=SHAPE).astype("float16"),
                        VolumeMeta(f"sub-{row}", "made", "0" * 64, np.eye(4).tolist(), label="A"),
                    )
                    for row in range(first, min(first + per_shard, VOLUMES))
                ],
            )
            for first in range(0, VOLUMES, per_shard)
        ]
    )
    return ShardSet.open(path)
