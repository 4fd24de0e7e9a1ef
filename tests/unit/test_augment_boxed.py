"""A box of a changed volume is made of a box of the volume, bit for bit, where the changes allow it."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from trainer.config import AugmentConfig
from trainer.data.augment import boxed
from trainer.data.augment.drawing import Drawn, draw

SHAPE = (9, 8, 7, 2)
MM = (2.0, 2.0, 2.5)
# Of each sample some of them, since each is drawn.
BY_VOXEL = AugmentConfig(
    flip=True,
    shift=3,
    scale=0.2,
    noise=0.1,
    mirror={"back_front": 0.5, "bottom_top": 0.5},
    cut_out={"probability": 0.7, "boxes": 2, "size": 9.0},
)
MIRRORED = AugmentConfig(mirror={"left_right": 0.5}, shift=1)
MIXING = ("affine", "elastic", "motion", "ghosting", "blur", "bias_field", "rician_noise", "gaussian_noise")


def random_box(random: np.random.Generator) -> tuple[tuple[int, int], ...]:
    starts = [int(random.integers(0, size)) for size in SHAPE[:3]]
    return tuple((a, int(random.integers(a + 1, n + 1))) for a, n in zip(starts, SHAPE, strict=False))


def within(box: tuple[tuple[int, int], ...]) -> tuple[slice, ...]:
    return tuple(slice(*ends) for ends in box)


@pytest.mark.parametrize("config", [BY_VOXEL, MIRRORED], ids=["all", "mirrored"])
def test_a_box_of_a_changed_volume_is_made_of_its_source_and_of_nothing_else(config):
    random = np.random.default_rng(0)
    volume = random.normal(size=SHAPE).astype(np.float32)
    labels = random.integers(0, 4, SHAPE[:3]).astype(np.uint8)
    for sample in range(60):
        # Noise is drawn once, so each use draws the sample anew.
        drawn = functools.partial(draw, config, 1, 2, sample, SHAPE, MM)
        box = random_box(random)
        part = boxed.source(drawn(), box)
        assert part is not None
        made = boxed.changed(drawn(), volume[within(part)], box)
        whole, moved = drawn().applied(volume, labels)
        assert made.dtype == np.float32 and made.tobytes() == whole[within(box)].tobytes()
        assert np.array_equal(boxed.moved(drawn(), labels), moved)
        assert all(b - a <= d - c for (a, b), (c, d) in zip(part, box, strict=True))


@pytest.mark.parametrize("name", [*MIXING, "gamma"])
def test_what_mixes_voxels_or_draws_for_a_channel_needs_the_whole(name):
    config = AugmentConfig(**{name: {"probability": 0.5}})
    found: list[tuple[Drawn, object]] = []
    for sample in range(30):
        drawn = draw(config, 1, 2, sample, SHAPE, MM)
        found.append((drawn, boxed.source(drawn, ((0, 2), (3, 8), (1, 7)))))
    # A sample for which it was not drawn needs its own box only.
    assert {part for drawn, part in found if name in drawn.to_json()} == {None}
    assert {part for drawn, part in found if name not in drawn.to_json()} == {((0, 2), (3, 8), (1, 7))}


@pytest.mark.parametrize("config", [MIRRORED, AugmentConfig(preset="strong")], ids=["mirrored", "strong"])
def test_an_empty_box_is_made_of_nothing_and_label_maps_move_all_the_same(config):
    random = np.random.default_rng(0)
    volume = random.normal(size=SHAPE).astype(np.float32)
    labels = random.integers(0, 4, SHAPE[:3]).astype(np.uint8)
    for sample in range(10):
        drawn = functools.partial(draw, config, 1, 2, sample, SHAPE, MM)
        part = boxed.source(drawn(), ((2, 2), (0, 8), (0, 7)))
        assert part is not None and part[0] == (0, 0)
        empty = volume[within(part)]
        assert boxed.changed(drawn(), empty, ((2, 2), (0, 8), (0, 7))).shape == (0, 8, 7, 2)
        assert np.array_equal(boxed.moved(drawn(), labels), drawn().applied(volume, labels)[1])
