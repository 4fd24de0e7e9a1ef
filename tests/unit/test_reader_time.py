"""Time is counted where it is spent, and augmentation is named when steps wait for it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from read_configs import reading
from shard_sets import make_shard_set

from trainer.config import AugmentConfig
from trainer.data.loading.pipeline import Samples, training_batches
from trainer.data.loading.reader_time import ReaderTime, input_verdict


def test_seconds_of_all_threads_add_up():
    spent = ReaderTime()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: spent.add(1.0, 0.25), range(400)))
    assert spent.seconds == (400.0, 100.0)


@pytest.mark.parametrize("augment", [AugmentConfig(), AugmentConfig(elastic={"probability": 1.0})])
def test_batches_count_the_seconds_of_its_threads(tmp_path, augment):
    spent = ReaderTime()
    shards = make_shard_set(tmp_path / "set")
    samples = Samples(shards, range(10), np.zeros(10, np.int32))
    batches = training_batches(samples, reading(0, 2, augment=augment), range(5), spent=spent)
    assert len(list(batches)) == 5
    reader_s, augment_s = spent.seconds
    assert 0 < augment_s < reader_s
    assert (augment_s > 0.2 * reader_s) is not augment.is_idle


@pytest.mark.parametrize(
    ("wait", "epoch", "reader", "augment", "warns"),
    [
        (6.0, 100.0, 150.0, 100.0, True),
        (4.9, 100.0, 150.0, 100.0, False),  # hardly waits
        (30.0, 100.0, 150.0, 70.0, False),  # reading and decoding is the larger part
        (0.0, 0.0, 0.0, 0.0, False),
        (30.0, 100.0, 0.0, 0.0, False),
    ],
)
def test_a_warning_names_augmentation_only_where_it_is_to_blame(wait, epoch, reader, augment, warns):
    said = input_verdict(wait, epoch, reader, augment, ("mirror", "motion"))
    assert (said is not None) == warns
    if said:
        assert "6.0% of the epoch" in said and "67%" in said and "data.reader_threads" in said
        assert "augmentation (mirror, motion)" in said


def test_each_epoch_is_judged_by_its_own_seconds_and_the_same_is_not_said_again():
    spent = ReaderTime()
    found = []
    for augment_s, waited in ((100.0, 6.0), (70.0, 50.0), (100.0, 8.0), (100.0, 12.0), (100.0, 12.0)):
        spent.add(150.0, augment_s)
        found.append(spent.verdict(waited, 100.0, ("motion",)))
    assert [said is not None for said in found] == [True, False, False, True, False]
    assert "67%" in found[0] and "12.0%" in found[3]
