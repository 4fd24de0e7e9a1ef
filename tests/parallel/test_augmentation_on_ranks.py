"""Augmented batches are the same bytes on one rank and on two."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from conftest import Launch
from tiny_runs import make_shards

from trainer.data.shards.shards import ShardSet


def test_one_rank_and_two_see_the_same_augmented_volumes_and_maps(launch: Launch, tmp_path: Path) -> None:
    shards = ShardSet.open(make_shards(tmp_path / "set", subjects=10, maps=True))
    for ranks in (1, 2):
        outcome = launch(ranks, "augmented_batches.py", shards.path, tmp_path)
        assert outcome.exit_code == 0, outcome.err
    whole = np.load(tmp_path / "0-of-1.npz")
    parts = [np.load(tmp_path / f"{rank}-of-2.npz") for rank in (0, 1)]
    for name in "xyw":
        # Steps, then samples of a step.
        assert np.array_equal(np.concatenate([part[name] for part in parts], axis=1), whole[name]), name
    assert whole["x"].shape == (6, 4, 16, 16, 16, 1)
    stored = [shards.read(row).astype(np.float32) for row in range(10)]
    assert not any(np.array_equal(x, s) for x in whole["x"].reshape(24, 16, 16, 16, 1) for s in stored)
