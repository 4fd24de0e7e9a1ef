"""Patches lie where seed, epoch and sample say, in the volume, and about what was asked for."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from handed_out import as_arrays
from read_configs import reading
from shard_sets import META, SHAPE, make_mapped_set, make_shard_set, map_of, meta_of, volume_of
from wording import fails_with

from trainer.config import AugmentConfig, PatchConfig
from trainer.data.loading.order import order
from trainer.data.loading.patches import Patches
from trainer.data.loading.pipeline import Samples, training_batches
from trainer.data.shards.shard_writer import ShardWriter
from trainer.data.shards.shards import ShardSet
from trainer.errors import ConfigError

EDGE = 16
ROWS = (0, 0, 2, 2, 4, 4, 3, 3)
PATCH = PatchConfig(size=(3, 2, 4), per_volume=2)


@pytest.fixture(scope="module")
def mapped(tmp_path_factory) -> ShardSet:
    return make_mapped_set(tmp_path_factory.mktemp("mapped"))


@pytest.fixture(scope="module")
def lesions(tmp_path_factory) -> ShardSet:
    """Two volumes of 16 voxels an edge: a large class in one half, and a lesion of 8 voxels in a corner."""
    return _written(tmp_path_factory.mktemp("lesions"), maps=True)


def _written(folder: Path, *, maps: bool) -> ShardSet:
    classes = ("background", "tissue", "lesion") if maps else ()
    meta = dataclasses.replace(META, map_classes=classes)
    writer = ShardWriter(folder, (EDGE, EDGE, EDGE, 1), "float16", meta=meta)
    labels = np.zeros((2, EDGE, EDGE, EDGE), np.uint8)
    labels[0, 8:] = 1
    labels[0, :2, 12:14, 4:6] = 2
    volumes = [(label[..., None].astype("float16"), meta_of(row)) for row, label in enumerate(labels)]
    writer.finish([writer.write_shard(0, volumes, maps=list(labels) if maps else None)])
    return ShardSet.open(folder)


def origins(patches: Patches, count: int = 300, row: int = 0) -> list[tuple[int, int, int]]:
    return [patches.origin(5, 1, sample, row) for sample in range(count)]


def held(patches: Patches, origin: tuple[int, int, int], row: int = 0) -> set[int]:
    part = np.empty(patches.size, np.uint8)
    patches.shards.read_map_into(row, part, origin)
    return set(part.ravel().tolist())


def test_uniform_patches_lie_anywhere_in_the_volume(mapped):
    patches = Patches.build(PATCH, mapped)
    found = origins(patches, 2000)
    every = {(d, h, w) for d in range(4) for h in range(4) for w in range(1)}
    assert set(found) == every
    counts = [found.count(one) for one in every]
    assert min(counts) > 85 and max(counts) < 165  # 125 expected, standard deviation 11


def test_origins_are_a_pure_function_and_never_change(lesions):
    config = PatchConfig(size=4, sampling="classes", foreground_share=0.7)
    ones, others = (origins(Patches.build(config, lesions)) for _ in range(2))
    assert ones == others
    patches = Patches.build(config, lesions)
    assert ones[::-1] == [patches.origin(5, 1, sample, 0) for sample in reversed(range(300))]
    assert ones[:4] == [(2, 1, 10), (6, 4, 9), (0, 11, 3), (0, 5, 3)]
    assert np.mean([a == b for a, b in zip(ones, origins(patches, row=1), strict=True)]) < 0.5
    assert np.mean([patches.origin(5, 2, s, 0) == ones[s] for s in range(300)]) < 0.1
    assert np.mean([patches.origin(6, 1, s, 0) == ones[s] for s in range(300)]) < 0.1


def test_patches_of_classes_hold_the_class_that_was_drawn(lesions):
    config = PatchConfig(size=6, sampling="classes", foreground_share=1.0)
    patches = Patches.build(config, lesions)
    found = [held(patches, origin) for origin in origins(patches)]
    # A third is drawn for each class; a lesion of 8 voxels in 4096 is nearly never met by chance.
    assert 0.26 < np.mean([2 in some for some in found]) < 0.45
    by_chance = Patches.build(PatchConfig(size=6), lesions)
    assert np.mean([2 in held(by_chance, origin) for origin in origins(by_chance)]) < 0.25


def test_the_share_of_patches_about_the_foreground_is_what_was_asked_for(lesions):
    def share(value: float) -> float:
        config = PatchConfig(size=2, sampling="foreground", foreground_share=value)
        patches = Patches.build(config, lesions)
        # The foreground is half of the volume; of uniform patches, some lie wholly in the other half.
        return float(np.mean([held(patches, origin) != {0} for origin in origins(patches, 1000)]))

    none, half, every = share(0.0), share(0.5), share(1.0)
    assert every == 1.0
    assert 0.5 < none < 0.62
    assert half == pytest.approx((none + every) / 2, abs=0.05)


def test_without_maps_the_foreground_is_what_is_brighter(tmp_path):
    shards = _written(tmp_path, maps=False)
    config = PatchConfig(size=2, sampling="foreground", foreground_share=1.0, threshold=1.5)
    patches = Patches.build(config, shards)
    assert all(d <= 1 and 11 <= h <= 13 and 3 <= w <= 5 for d, h, w in origins(patches))


def test_a_volume_without_foreground_gives_patches_from_anywhere(lesions):
    config = PatchConfig(size=4, sampling="foreground", foreground_share=1.0)
    found = origins(Patches.build(config, lesions), row=1)
    assert len(set(found)) > 200


def test_a_volume_is_looked_through_once(lesions, monkeypatch):
    whole: list[int] = []
    read = ShardSet.read_map_into
    monkeypatch.setattr(
        ShardSet,
        "read_map_into",
        lambda self, row, out, origin=None: (whole.append(row), read(self, row, out, origin)),
    )
    monkeypatch.setattr(ShardSet, "read_into", None)
    origins(Patches.build(PatchConfig(size=4, sampling="classes"), lesions))
    assert whole == [0]


def training(shards, rank=0, world_size=1, **keys) -> list[tuple[np.ndarray, ...]]:
    samples = Samples(shards, ROWS, None, patches=Patches.build(PATCH, shards))
    config = reading(3, **keys)
    return as_arrays(training_batches(samples, config, range(4), rank=rank, world_size=world_size))


def test_training_takes_the_patches_of_volume_and_map(mapped):
    patches = Patches.build(PATCH, mapped)
    shape = (*SHAPE[:3], 2)
    for step, (x, y, _) in enumerate(training(mapped)):
        assert x.shape == (4, 3, 2, 4, 2) and y.shape == (4, 3, 2, 4)
        epoch, in_epoch = divmod(step, 2)
        for one, labels, position in zip(x, y, order(3, epoch, in_epoch, 4, len(ROWS)), strict=True):
            row = ROWS[position]
            # Each row comes twice in a row, the second time as a sample of its own.
            origin = patches.origin(3, epoch, row + position % 2 * len(mapped), row)
            assert np.array_equal(one, _cut(volume_of(row, shape), origin))
            assert np.array_equal(labels, _cut(map_of(row), origin))


def _cut(volume: np.ndarray, origin: tuple[int, int, int]) -> np.ndarray:
    return volume[tuple(slice(a, a + n) for a, n in zip(origin, (3, 2, 4), strict=True))]


@pytest.mark.parametrize("threads", [1, 3])
def test_two_ranks_take_the_patches_that_one_takes(mapped, threads):
    changes = {"augment": AugmentConfig(flip=True, noise=0.1), "reader_threads": threads}
    alone = training(mapped, **changes)
    ranks = [training(mapped, rank=rank, world_size=2, **changes) for rank in (0, 1)]
    for one, first, second in zip(alone, *ranks, strict=True):
        for whole, a, b in zip(one, first, second, strict=True):
            assert np.array_equal(whole, np.concatenate([a, b]))


def test_what_cannot_be_is_refused(tmp_path, mapped):
    with fails_with(ConfigError):
        Patches.build(PatchConfig(size=(7, 2, 2)), mapped)
    plain = make_shard_set(tmp_path, 2)
    with fails_with(ConfigError):
        Patches.build(PatchConfig(size=2, sampling="classes"), plain)
