"""A read of stored bytes that hangs is an error that names it, not a wait without end."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
from read_configs import reading
from shard_sets import make_shard_set

from trainer.config.data import DataConfig
from trainer.config.run import GuardConfig
from trainer.data.loading.pipeline import Samples, evaluation_batches, training_batches
from trainer.errors import ShardError

ROWS = (1, 2, 4, 5, 6, 8, 9)
TARGETS = np.array([0, 1, 1, 0, 1, 0, 1], np.int32)


def batches(shards, kind: str, read_timeout: float):
    samples = Samples(shards, ROWS, TARGETS)
    config = reading(3, 2, evaluation_batch=2, read_timeout=read_timeout)
    if kind == "evaluation":
        return evaluation_batches(samples, config)
    return training_batches(samples, config, range(4))


@pytest.mark.parametrize("kind", ["training", "evaluation"])
def test_a_read_that_hangs_raises_an_error_that_names_it(tmp_path, monkeypatch, kind):
    shards = make_shard_set(tmp_path)
    go, plain, place = threading.Event(), os.preadv, shards.volumes[4].offset
    # The first volumes of all shards lie at the same byte.
    file = (shards.path / "shard-00001.h5").stat().st_ino

    def preadv(descriptor, buffers, offset):
        if offset == place and os.fstat(descriptor).st_ino == file:
            go.wait(20)
        return plain(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    message = rf"shard-00001.h5, byte {place}: reading volume 4 \(subject sub-04\) .* more than 1 s"
    try:
        with pytest.raises(ShardError, match=message):
            list(batches(shards, kind, 1.0))
    finally:
        go.set()


@pytest.mark.parametrize("kind", ["training", "evaluation"])
def test_a_read_that_is_slow_within_the_limit_is_no_error(tmp_path, monkeypatch, kind):
    shards = make_shard_set(tmp_path)
    pause, plain = threading.Event(), os.preadv
    monkeypatch.setattr(os, "preadv", lambda *how: (pause.wait(0.02), plain(*how))[1])
    assert len(list(batches(shards, kind, 10.0))) == 4


def test_the_default_limit_speaks_before_the_watchdog():
    assert DataConfig(shards="x").read_timeout < 0.9 * GuardConfig().timeout_s
