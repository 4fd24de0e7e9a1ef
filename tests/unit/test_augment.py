"""Augmentation is a pure function of seed, epoch and volume, and does what its configuration says."""

from __future__ import annotations

import numpy as np

from trainer.config import AugmentConfig
from trainer.data.augment import augment as augment_both


def augment(*arguments):
    """The volume alone."""
    return augment_both(*arguments)[0]


VOLUME = np.random.default_rng(0).normal(size=(9, 8, 7, 2)).astype(np.float32)
ALL = AugmentConfig(flip=True, shift=2, scale=0.1, noise=0.05)


def test_the_same_seed_epoch_and_volume_give_the_same_change():
    assert np.array_equal(augment(VOLUME, ALL, 1, 2, 3), augment(VOLUME, ALL, 1, 2, 3))


def test_another_seed_epoch_or_volume_gives_another():
    first = augment(VOLUME, ALL, 1, 2, 3)
    for other in ((2, 2, 3), (1, 3, 3), (1, 2, 4), (2, 1, 3)):
        assert not np.array_equal(first, augment(VOLUME, ALL, *other))


def test_the_input_is_left_alone_and_the_type_stays():
    before = VOLUME.copy()
    changed = augment(VOLUME, ALL, 0, 0, 0)
    assert np.array_equal(VOLUME, before)
    assert (changed.dtype, changed.shape) == (np.float32, VOLUME.shape)


def test_nothing_asked_changes_nothing():
    assert np.array_equal(augment(VOLUME, AugmentConfig(), 0, 0, 0), VOLUME)


def test_half_of_the_samples_are_mirrored_left_to_right():
    made = [augment(VOLUME, AugmentConfig(flip=True), 0, 0, row) for row in range(400)]
    mirrored = [np.array_equal(volume, VOLUME[::-1]) for volume in made]
    assert all(m or np.array_equal(volume, VOLUME) for m, volume in zip(mirrored, made, strict=True))
    assert 160 < sum(mirrored) < 240


def test_shifts_reach_the_given_distance_and_no_further():
    ramp = np.broadcast_to(np.arange(20.0, dtype=np.float32)[:, None, None, None], (20, 20, 20, 1))
    shifts = [
        10 - augment(ramp, AugmentConfig(shift=3), 0, epoch, 0)[10, 10, 10, 0].item() for epoch in range(300)
    ]
    assert set(shifts) == {-3, -2, -1, 0, 1, 2, 3}


def test_what_a_shift_brings_in_repeats_the_edge():
    ramp = np.broadcast_to(np.arange(9.0, dtype=np.float32)[:, None, None, None], (9, 6, 6, 1))
    for epoch in range(20):
        steps = np.diff(augment(ramp, AugmentConfig(shift=2), 0, epoch, 0), axis=0)
        assert set(np.unique(steps)) <= {0, 1}  # taking from the other end would step down


def test_intensity_changes_by_no_more_than_asked():
    factors = [
        augment(np.ones((1, 1, 1, 1), np.float32), AugmentConfig(scale=0.2), 0, epoch, 0).item()
        for epoch in range(300)
    ]
    assert 0.8 <= min(factors) < 0.82 and 1.18 < max(factors) <= 1.2


def test_noise_has_the_given_standard_deviation():
    noise = augment(np.zeros((40, 40, 40, 1), np.float32), AugmentConfig(noise=0.3), 0, 0, 0)
    assert abs(noise.std() - 0.3) < 0.005


def test_a_label_map_moves_with_its_volume():
    values = np.arange(9 * 8 * 7).reshape(9, 8, 7)
    moving = AugmentConfig(flip=True, shift=3)
    for epoch in range(20):
        volume, labels = augment_both(
            values[..., None].astype(np.float32), moving, 0, epoch, 1, values.astype(np.uint16)
        )
        assert np.array_equal(volume[..., 0], labels)
    _, labels = augment_both(VOLUME, AugmentConfig(scale=0.5, noise=1.0), 0, 0, 0, values.astype(np.uint16))
    assert np.array_equal(labels, values)


def as_first_written(volume, config, seed, epoch, sample):
    """The plain changes as the first release made them; runs of it must go on as they began."""
    sequence = np.random.SeedSequence([0x617567, seed, epoch, sample])
    random = np.random.Generator(np.random.Philox(sequence))
    mirrored = random.random() < 0.5
    shifts = random.uniform(-1, 1, size=3)
    factor = 1 + config.scale * random.uniform(-1, 1)
    volume = volume[::-1] if mirrored else volume
    for axis, shift in enumerate(np.rint(shifts * (config.shift + 0.499)).astype(int)):
        volume = volume.take(np.arange(volume.shape[axis]) - shift, axis, mode="clip")
    volume = volume * np.float32(factor)
    return volume + np.float32(config.noise) * random.standard_normal(volume.shape, np.float32)


def test_the_plain_changes_are_bit_for_bit_those_of_the_first_release():
    for sample in range(20):
        assert np.array_equal(augment(VOLUME, ALL, 1, 2, sample), as_first_written(VOLUME, ALL, 1, 2, sample))
