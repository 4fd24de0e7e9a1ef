"""A rank that computes a box of each volume is given that box, bit for bit, and reads no more than that."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from draws import draws
from handed_out import as_arrays
from hypothesis import given, settings
from hypothesis import strategies as st
from read_configs import reading
from shard_sets import make_mapped_set, make_shard_set
from wording import fails_with

from trainer.config import AugmentConfig, PatchConfig
from trainer.data.loading.cache import KeptVolumes
from trainer.data.loading.patches import Patches
from trainer.data.loading.pipeline import Samples, evaluation_batches, training_batches
from trainer.data.loading.slabs import Slab
from trainer.data.shards import bricks
from trainer.data.shards.shards import ShardSet
from trainer.data.splits.splits import Split
from trainer.errors import ConfigError, ShardError
from trainer.runs import preparation
from trainer.strategies.base import Share

SHAPE = (7, 6, 8, 2)
MAPPED = (6, 5, 4, 2)
ROWS = (0, 2, 2, 4)
TARGETS = np.array([0, 1, 1, 0], np.int32)
PATCH = PatchConfig(size=(5, 4, 6), per_volume=1)
LAYOUTS = {
    "whole, uncompressed": {"codec": "none"},
    "whole, blosc-lz4": {"codec": "blosc-lz4"},
    "whole, int16": {"codec": "gzip", "dtype": "int16"},
    "bricks of 2": {"bricks": 2},
    "bricks of 3, uncompressed": {"bricks": 3, "codec": "none"},
    "bricks of 5, int16": {"bricks": 5, "codec": "blosc-zstd-bit", "dtype": "int16"},
    "bricks of 3, bfloat16": {"bricks": 3, "dtype": "bfloat16"},
}
# The first three move and change voxel by voxel, the last mixes them.
CHANGES = {
    "nothing": AugmentConfig(),
    "moved": AugmentConfig(mirror={"left_right": 0.5}, shift=1),
    "plain": AugmentConfig(
        flip=True,
        shift=3,
        scale=0.2,
        noise=0.1,
        mirror={"back_front": 0.5, "bottom_top": 0.5},
        cut_out={"probability": 0.7, "boxes": 2, "size": 9.0},
    ),
    "mixing": AugmentConfig(
        affine={"probability": 0.5},
        blur={"probability": 0.4},
        gaussian_noise={"probability": 0.5},
        noise=0.1,
    ),
}


def box_in(shape: tuple[int, ...]) -> st.SearchStrategy[tuple[tuple[int, int], ...]]:
    def ends(size: int) -> st.SearchStrategy[tuple[int, int]]:
        return st.tuples(st.integers(0, size), st.integers(0, size)).map(lambda two: (min(two), max(two)))

    return st.tuples(*(ends(size) for size in shape[:3]))


def cut(volumes: np.ndarray, space: tuple[tuple[int, int], ...]) -> np.ndarray:
    """That box of a batch of volumes."""
    return volumes[(slice(None), *(slice(start, stop) for start, stop in space))]


def same(ours: np.ndarray, theirs: np.ndarray) -> bool:
    return (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype) and ours.tobytes() == theirs.tobytes()


def training(shards: ShardSet, augment: AugmentConfig, space=None, *, patches=None, maps=False) -> list:
    samples = Samples(shards, ROWS, None if maps else TARGETS, patches=patches)
    config = reading(3, 2, augment=augment, reader_threads=2)
    return as_arrays(training_batches(samples, config, range(4), space=space))


@pytest.fixture(scope="module", params=LAYOUTS)
def shards(request, tmp_path_factory) -> ShardSet:
    return make_shard_set(tmp_path_factory.mktemp("set"), 5, shape=SHAPE, **LAYOUTS[request.param])


@pytest.fixture(scope="module")
def mapped(tmp_path_factory) -> ShardSet:
    return make_mapped_set(tmp_path_factory.mktemp("mapped"), bricks=3)


@pytest.fixture(scope="module")
def bricked(tmp_path_factory) -> ShardSet:
    return make_shard_set(tmp_path_factory.mktemp("bricked"), 5, shape=SHAPE, bricks=2)


def bytes_touched(shards: ShardSet, row: int, space: tuple[tuple[int, int], ...]) -> int:
    """Bytes of the bricks that share a voxel with a box, found brick by brick."""
    table, edge = bricks.unpack_table(shards.volumes[row].brick_table), shards.bricks
    grid = itertools.product(*(range(-(-size // edge)) for size in shards.shape[:3]))
    return sum(
        int(nbytes)
        for place, nbytes in zip(grid, table["nbytes"], strict=True)
        if all(max(a, n * edge) < min(b, (n + 1) * edge) for n, (a, b) in zip(place, space, strict=True))
    )


@pytest.mark.parametrize("kind", CHANGES)
def test_a_slab_is_that_box_of_the_whole_batch_bit_for_bit(shards, kind):
    whole = training(shards, CHANGES[kind])

    @given(space=box_in(SHAPE))
    @settings(max_examples=draws(24))
    def each(space):
        for (x, y, w), (all_x, all_y, all_w) in zip(
            training(shards, CHANGES[kind], space), whole, strict=True
        ):
            assert same(x, cut(all_x, space))
            assert same(y, all_y) and same(w, all_w)

    each()


@pytest.mark.parametrize("kind", CHANGES)
def test_a_slab_of_a_patch_is_that_box_of_the_patch(shards, kind):
    patches = Patches.build(PATCH, shards)
    whole = training(shards, CHANGES[kind], patches=patches)
    assert whole[0][0].shape == (2, 5, 4, 6, 2)

    @given(space=box_in(patches.shape))
    @settings(max_examples=draws(15))
    def each(space):
        for (x, *_), (all_x, *_) in zip(
            training(shards, CHANGES[kind], space, patches=patches), whole, strict=True
        ):
            assert same(x, cut(all_x, space))

    each()


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("in_patches", [False, True])
def test_label_maps_stay_whole_and_move_with_their_volumes(mapped, kind, in_patches):
    patches = Patches.build(PatchConfig(size=(5, 4, 3)), mapped) if in_patches else None
    whole = training(mapped, CHANGES[kind], patches=patches, maps=True)

    @given(space=box_in(patches.shape if patches else MAPPED))
    @settings(max_examples=draws(24))
    def each(space):
        found = training(mapped, CHANGES[kind], space, patches=patches, maps=True)
        for (x, y, _), (all_x, all_y, _) in zip(found, whole, strict=True):
            assert same(x, cut(all_x, space))
            assert same(y, all_y)

    each()


@given(space=box_in(SHAPE))
@settings(max_examples=draws(30))
def test_a_split_is_evaluated_on_the_same_box(bricked, space):
    samples = Samples(bricked, (1, 3, 4), np.array([1, 1, 0], np.int32))
    config = reading(evaluation_batch=2)
    whole = as_arrays(evaluation_batches(samples, config))
    before = bricked.bytes_read
    found = as_arrays(evaluation_batches(samples, config, space=space))
    for (row, x, y, w), (all_rows, all_x, all_y, all_w) in zip(found, whole, strict=True):
        assert same(x, cut(all_x, space))
        assert same(row, all_rows) and same(y, all_y) and same(w, all_w)
    assert bricked.bytes_read - before == sum(bytes_touched(bricked, row, space) for row in (1, 3, 4))


@given(space=box_in(SHAPE))
@settings(max_examples=draws(60))
def test_the_bytes_read_are_those_of_the_bricks_that_the_box_touches(bricked, space):
    before = bricked.bytes_read
    training(bricked, AugmentConfig(), space)
    read = bricked.bytes_read - before
    # Two epochs of two steps, each row of the list once in each.
    assert read == 2 * sum(bytes_touched(bricked, row, space) for row in ROWS)
    if any(stop <= size - 2 or start >= 2 for (start, stop), size in zip(space, SHAPE, strict=False)):
        assert read < 2 * sum(bricked.volumes[row].nbytes for row in ROWS)


def test_half_of_the_depth_reads_half_of_the_bricks(tmp_path):
    shards = make_shard_set(tmp_path, 5, shape=(8, 6, 8, 1), bricks=2, codec="none")
    training(shards, AugmentConfig(), ((0, 4), (0, 6), (0, 8)))
    assert shards.bytes_read == 2 * sum(shards.volumes[row].nbytes for row in ROWS) // 2


def test_moving_whole_voxels_reads_no_more_than_the_box_was_moved_from(bricked):
    space = ((2, 4), (0, 6), (3, 8))
    before = bricked.bytes_read
    training(bricked, CHANGES["plain"], space)
    read = bricked.bytes_read - before
    # Another box of each sample, of the same size but for what a shift has moved out.
    assert 0 < read < 0.8 * 2 * sum(bricked.volumes[row].nbytes for row in ROWS)


def test_a_chunk_of_a_whole_volume_is_read_whole_since_its_checksum_is(tmp_path):
    shards = make_shard_set(tmp_path, 5, shape=SHAPE, codec="none")
    training(shards, AugmentConfig(), ((0, 1), (0, 6), (0, 8)))
    assert shards.bytes_read == 2 * sum(shards.volumes[row].nbytes for row in ROWS)
    content = bytearray((tmp_path / shards.volumes[2].shard).read_bytes())
    content[shards.volumes[2].offset + shards.volumes[2].nbytes - 1] ^= 1  # far from the box
    (tmp_path / shards.volumes[2].shard).write_bytes(content)
    with fails_with(ShardError):
        training(ShardSet.open(tmp_path), AugmentConfig(), ((0, 1), (0, 6), (0, 8)))


def test_nothing_but_targets_is_read_for_an_empty_box(bricked, mapped, monkeypatch):
    told = []
    monkeypatch.setattr(ShardSet, "will_read", lambda self, row, **maps: told.append(self))
    empty = ((3, 3), (0, 6), (0, 8))
    before = bricked.bytes_read
    x, y, _ = training(bricked, CHANGES["mixing"], empty)[0]
    assert x.shape == (2, 0, 6, 8, 2) and set(y) <= {0, 1}
    # Threads of tests before may still read ahead, from sets of their own.
    assert bricked.bytes_read == before and bricked not in told
    before = mapped.bytes_read
    for kind in CHANGES:
        training(mapped, CHANGES[kind], ((0, 0), (0, 0), (0, 0)), maps=True)
    maps = 2 * sum(mapped.volumes[row].map_nbytes for row in ROWS)
    assert mapped.bytes_read - before == len(CHANGES) * maps


def test_a_set_kept_in_memory_keeps_whole_volumes_and_gives_their_boxes(bricked):
    space = ((1, 4), (2, 6), (0, 3))
    for kind in CHANGES:
        kept = KeptVolumes(bricked, 10**6)
        before = bricked.bytes_read
        found = training(kept, CHANGES[kind], space)
        assert bricked.bytes_read - before == sum(bricked.volumes[row].nbytes for row in set(ROWS))
        for (x, *_), (all_x, *_) in zip(found, training(bricked, CHANGES[kind]), strict=True):
            assert same(x, cut(all_x, space))


def test_a_share_hands_its_box_to_training_and_evaluation(bricked):
    targets = dict(zip(ROWS, TARGETS, strict=True))
    task = SimpleNamespace(
        targets=lambda rows: np.array([targets[row] for row in rows], np.int32),
        volume_classes=None,
        class_weights=lambda: None,
    )
    data = preparation.Data(bricked, task, Split(train=(0, 2, 4), validation=(0, 2), test=()))
    config = reading(3, 3, evaluation_batch=2)
    space = ((2, 5), (0, 6), (1, 2))
    for make in (
        lambda share: preparation.training_batches(config, data, share, 0, stop_step=2),
        lambda share: preparation.evaluation_batches(config, data, share, "validation"),
    ):
        inputs = [
            next(part for part in batch if part.ndim == 5)
            for share in (Share(0, 1), Share(0, 1, space))
            for batch in as_arrays(make(share))
        ]
        half = len(inputs) // 2
        for whole, box in zip(inputs[:half], inputs[half:], strict=True):
            assert same(box, cut(whole, space))


def test_networks_of_patches_are_evaluated_on_whole_volumes(bricked):
    samples = Samples(bricked, ROWS[:2], TARGETS[:2], patches=Patches.build(PATCH, bricked))
    _, x, _, _ = as_arrays(evaluation_batches(samples, reading(), space=((0, 2), (0, 4), (0, 6))))[0]
    assert x.shape[1:] == SHAPE


@pytest.mark.parametrize(
    "space", [((0, 8), (0, 6), (0, 8)), ((-1, 2), (0, 6), (0, 8)), ((3, 2), (0, 6), (0, 8)), ((0, 7), (0, 6))]
)
def test_a_box_beyond_the_input_is_refused(bricked, space):
    samples = Samples(bricked, ROWS, TARGETS)
    with fails_with(ConfigError) as error:
        training_batches(samples, reading(), range(4), space=space)
    assert "Share.space" in error.value.cure
    with pytest.raises(ConfigError):
        evaluation_batches(samples, reading(), space=space)


def test_all_of_space_is_no_slab():
    assert Slab.of(((0, 7), (0, 6), (0, 8)), SHAPE) is None
    assert Slab.of(None, SHAPE) is None
    assert Slab.of(((0, 7), (1, 6), (0, 8)), SHAPE).origin((1, 1, 1)) == (1, 2, 1)
