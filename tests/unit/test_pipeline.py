"""The loader gives every rank its samples, in order, whatever the threads and the world size."""

from __future__ import annotations

import itertools
import time
import tracemalloc

import numpy as np
import pytest
import tensorflow as tf
from handed_out import as_arrays
from read_configs import reading
from shard_sets import flip_byte, make_shard_set, volume_of
from wording import fails_with

from trainer.config import AugmentConfig
from trainer.data.augment import augment as augment_both
from trainer.data.loading import order
from trainer.data.loading.pipeline import Samples, evaluation_batches, training_batches
from trainer.data.shards.shards import ShardSet
from trainer.data.splits.balance import balanced_rows, balanced_weights
from trainer.errors import ConfigError, ShardError

ROWS = (1, 2, 4, 5, 6, 8, 9)
TARGETS = np.array([0, 1, 1, 0, 1, 0, 1], np.int32)
CHANGES = AugmentConfig(flip=True, shift=1, scale=0.2, noise=0.1)


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> ShardSet:
    return make_shard_set(tmp_path_factory.mktemp("shards"))


def training(
    shards, start=0, stop=8, batch=4, *, rank=0, world_size=1, class_weights=None, **keys
) -> list[tuple[np.ndarray, ...]]:
    samples = Samples(shards, ROWS, TARGETS, class_weights=class_weights)
    config = reading(3, batch, **keys)
    return as_arrays(training_batches(samples, config, range(start, stop), rank=rank, world_size=world_size))


def assert_same(ones, others) -> None:
    assert len(ones) == len(others)
    for one, other in zip(ones, others, strict=True):
        for a, b in zip(one, other, strict=True):
            assert a.dtype == b.dtype
            assert np.array_equal(a, b)


def test_batches_are_what_the_order_says(shards):
    batches = training(shards, augment=CHANGES)
    assert len(batches) == 8
    for step, (x, y, w) in enumerate(batches):
        epoch, in_epoch = divmod(step, 2)
        positions = order.order(3, epoch, in_epoch, 4, len(ROWS))
        for volume, position in zip(x, positions, strict=True):
            row = ROWS[position]
            assert np.array_equal(
                volume, augment_both(volume_of(row, dtype="float32"), CHANGES, 3, epoch, row)[0]
            )
        assert np.array_equal(y, TARGETS[positions])
        assert np.array_equal(w, order.weights(in_epoch, 4, len(ROWS)))
    assert (x.dtype, y.dtype, w.dtype) == (np.float32, np.int32, np.float32)
    assert x.shape == (4, *shards.shape)


def test_the_kernel_is_told_of_each_volume_before_it_is_read(shards, monkeypatch):
    told, read = [], []
    into = ShardSet.read_into
    monkeypatch.setattr(ShardSet, "will_read", lambda self, row, **maps: told.append((len(read), row)))
    monkeypatch.setattr(
        ShardSet, "read_into", lambda self, row, *to: read.append(row) or into(self, row, *to)
    )
    training(shards, reader_threads=1, rank=1, world_size=2)
    # Two of a rank's samples are told ahead of one thread; nothing beyond the last is.
    assert told == list(enumerate(read[2:]))


def test_shapes_and_length_are_known_beforehand(shards):
    batches = training_batches(Samples(shards, ROWS, TARGETS), reading(0, 6, accumulation=3), range(3, 7))
    assert batches.spec == (
        tf.TensorSpec((2, *shards.shape), tf.float32),
        tf.TensorSpec((2,), tf.int32),
        tf.TensorSpec((2,), tf.float32),
    )
    assert len(batches) == 12


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("prefetch", [0, 1, 9])
def test_threads_and_prefetch_change_nothing(shards, threads, prefetch):
    expected = training(shards, augment=CHANGES, reader_threads=1, prefetch=0)
    found = training(shards, augment=CHANGES, reader_threads=threads, prefetch=prefetch)
    assert_same(found, expected)


def test_slow_samples_do_not_change_the_order(shards, monkeypatch):
    expected = training(shards)
    read = ShardSet.read_into
    lots = np.random.default_rng(0)
    monkeypatch.setattr(
        ShardSet, "read_into", lambda self, *to: time.sleep(lots.random() / 100) or read(self, *to)
    )
    assert_same(training(shards, reader_threads=4, prefetch=3), expected)


@pytest.mark.parametrize(("world_size", "accumulation"), [(2, 1), (1, 2), (2, 2), (4, 1), (1, 4)])
def test_all_ranks_and_micro_batches_together_are_the_global_batch(shards, world_size, accumulation):
    whole = training(shards, augment=CHANGES)
    ranks = [
        training(shards, augment=CHANGES, rank=rank, world_size=world_size, accumulation=accumulation)
        for rank in range(world_size)
    ]
    joined = []
    for step in range(8):
        parts = [
            ranks[rank][step * accumulation + micro]
            for micro in range(accumulation)
            for rank in range(world_size)
        ]
        joined.append(tuple(np.concatenate(column) for column in zip(*parts, strict=True)))
    assert_same(joined, whole)


def test_a_run_that_goes_on_at_another_step_and_world_size_sees_the_same_samples(shards):
    whole = training(shards, augment=CHANGES)
    resumed = [training(shards, start=3, augment=CHANGES, rank=rank, world_size=2) for rank in (0, 1)]
    for step, parts in enumerate(zip(*resumed, strict=True), start=3):
        assert_same([tuple(map(np.concatenate, zip(*parts, strict=True)))], [whole[step]])


def test_a_second_pass_and_one_after_a_broken_off_pass_give_the_same(shards):
    batches = training_batches(Samples(shards, ROWS, TARGETS), reading(3, prefetch=3), range(8))
    first = as_arrays(batches)
    for _ in itertools.islice(batches, 2):
        pass
    assert_same(as_arrays(batches), first)


def test_two_passes_at_once_do_not_disturb_each_other(shards):
    batches = training_batches(Samples(shards, ROWS, TARGETS), reading(3), range(6))
    expected = as_arrays(batches)
    pairs = list(zip(batches, batches, strict=True))
    assert_same([a for a, _ in pairs], expected)
    assert_same([b for _, b in pairs], expected)


def test_class_weights_multiply_and_balanced_ones_have_mean_one(shards):
    weights = balanced_weights(TARGETS, 2)
    assert weights.tolist() == pytest.approx([7 / 6, 7 / 8])
    assert weights[TARGETS].mean() == pytest.approx(1)
    plain, weighed = training(shards), training(shards, class_weights=weights)
    for (_, y, w), (_, _, heavier) in zip(plain, weighed, strict=True):
        assert heavier == pytest.approx(w * weights[y])


def test_a_class_without_members_cannot_be_balanced():
    with pytest.raises(ValueError, match="3 classes"):
        balanced_weights(TARGETS, 3)


@pytest.mark.parametrize(
    ("options", "message", "cure"),
    [
        (
            {"batch": 4, "world_size": 3},
            "4 samples cannot be shared evenly by 3 rank",
            "train.global_batch=3",
        ),
        (
            {"batch": 6, "world_size": 2, "accumulation": 2},
            r"by 2 rank\(s\) with 2 micro-batch",
            "train.global_batch=8",
        ),
        ({"batch": 2, "world_size": 4}, "2 samples cannot be shared evenly by 4", "train.global_batch=4"),
        ({"batch": 8}, "8 is more than the 7 training volumes", "larger share"),
    ],
)
def test_a_global_batch_that_does_not_fit_is_refused(shards, options, message, cure):
    with pytest.raises(ConfigError, match=message) as error:
        training(shards, **options)
    assert cure in error.value.cure


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("batch", [1, 2, 5])
def test_evaluation_sees_every_volume_exactly_once_in_equal_steps(shards, world_size, batch):
    seen = []
    for rank in range(world_size):
        batches = evaluation_batches(
            Samples(shards, ROWS, TARGETS), reading(evaluation_batch=batch), rank=rank, world_size=world_size
        )
        elements = as_arrays(batches)
        assert len(elements) == len(batches) == -(-len(ROWS) // (world_size * batch))
        for rows, x, y, w in elements:
            assert (rows.dtype, x.shape) == (np.int64, (batch, *shards.shape))
            assert set(w[rows < 0]) <= {0.0} and set(w[rows >= 0]) <= {1.0}
            assert not x[rows < 0].any()
            for row, volume, target in zip(rows[w > 0], x[w > 0], y[w > 0], strict=True):
                assert np.array_equal(volume, volume_of(row))
                seen.append((int(row), int(target)))
    assert sorted(seen) == list(zip(ROWS, TARGETS.tolist(), strict=True))


def test_an_empty_split_takes_no_step(shards):
    batches = evaluation_batches(Samples(shards, (), np.zeros(0, np.int32)), reading())
    assert (list(batches), len(batches)) == ([], 0)


def test_no_change_asked_for_is_as_none(shards, monkeypatch):
    expected = training(shards)
    monkeypatch.setattr("trainer.data.augment.draw", None)  # it takes time even where it changes nothing
    assert_same(training(shards, augment=AugmentConfig()), expected)


def test_read_ahead_in_bytes_changes_nothing_but_what_is_begun(tmp_path):
    # A volume is a MiB, as it is handed out; a batch has four of them, and a few bytes more.
    shards = make_shard_set(tmp_path, shape=(64, 64, 64, 1))
    expected = training(shards)
    for read_ahead, begun in ((0, 1), (4, 1), (5, 2), (1024, 3)):
        assert_same(training(shards, read_ahead=read_ahead), expected)
        before = shards.bytes_read
        batches = training_batches(
            Samples(shards, ROWS, TARGETS), reading(3, read_ahead=read_ahead), range(8)
        )
        kept = iter(batches)
        next(kept)
        positions = [order.order(3, step // 2, step % 2, 4, len(ROWS)) for step in range(begun)]
        bytes_begun = sum(shards.volumes[ROWS[p]].nbytes for step in positions for p in step)
        deadline = time.monotonic() + 20
        while shards.bytes_read - before < bytes_begun and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.05)
        assert shards.bytes_read - before == bytes_begun


def test_several_channels_go_through(tmp_path):
    shape = (6, 5, 4, 3)
    shards = make_shard_set(tmp_path, shape=shape, dtype="float32")
    for x, _, _ in training(shards, stop=1):
        assert x.shape == (4, *shape)


def peak_memory(shards: ShardSet, steps: int) -> int:
    """Bytes that a pass takes at most, besides what TensorFlow takes itself."""
    samples = Samples(shards, range(len(shards)), np.zeros(len(shards), np.int32))
    batches = training_batches(samples, reading(0, 2), range(steps))
    tracemalloc.start()
    try:
        assert len([None for _ in batches]) == steps
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", ["none", "blosc-lz4"])
def test_memory_does_not_depend_on_the_number_of_volumes(tmp_path, codec):
    shape = (24, 24, 24, 1)
    few = make_shard_set(tmp_path / "few", 4, shape=shape, codec=codec)
    many = make_shard_set(tmp_path / "many", 40, shape=shape, codec=codec)
    peak_memory(few, 4)  # what TensorFlow and Python load once
    batch = 2 * 24**3 * 4
    # Five batches, and for each thread a volume as it is stored; 40 volumes would be 20 batches.
    assert peak_memory(few, 4) < 7 * batch
    assert peak_memory(many, 60) < 7 * batch


@pytest.mark.parametrize("kind", ["training", "evaluation"])
def test_a_damaged_volume_raises_its_own_error(tmp_path, kind):
    shards = make_shard_set(tmp_path)
    volume = shards.volumes[4]
    flip_byte(tmp_path / volume.shard, volume.offset)
    with fails_with(ShardError):
        if kind == "training":
            training(shards)
        else:
            list(evaluation_batches(Samples(shards, ROWS, TARGETS), reading()))


def test_balanced_rows_show_every_class_equally_often_and_every_row():
    rows, targets = (10, 11, 12, 13, 14, 15, 16), np.array([0, 0, 0, 0, 0, 1, 1], np.int32)
    balanced = balanced_rows(rows, targets)
    assert sorted(balanced) == [10, 11, 12, 13, 14, 15, 15, 15, 16, 16]
    assert balanced_rows((3, 4), np.array([0, 1])) == (3, 4)


def test_a_row_that_comes_twice_in_an_epoch_is_augmented_differently(shards):
    samples = Samples(shards, (2, 2), np.zeros(2, np.int32))
    batches = training_batches(samples, reading(3, 2, augment=CHANGES), range(1))
    (x, _, _) = next(iter(batches))
    assert not np.array_equal(x[0], x[1])


def test_covariates_come_with_their_volume(shards):
    told = np.arange(2 * len(ROWS), dtype=np.float32).reshape(len(ROWS), 2)
    samples = Samples(shards, ROWS, TARGETS, told)
    found = {}
    for (x, c), y, w in training_batches(samples, reading(0, 1), range(len(ROWS))):
        found[tuple(c[0].numpy())] = (x[0].numpy(), int(y[0]), float(w[0]))
    assert len(found) == len(ROWS)
    for position, row in enumerate(ROWS):
        x, y, _ = found[tuple(told[position])]
        np.testing.assert_array_equal(x, volume_of(row, dtype="float32"))
        assert y == TARGETS[position]
    for row, (_x, c), _y, w in evaluation_batches(samples, reading()):
        for number, values, weight in zip(row.numpy(), c.numpy(), w.numpy(), strict=True):
            expected = told[ROWS.index(number)] if weight else np.zeros(2)
            np.testing.assert_array_equal(values, expected)
