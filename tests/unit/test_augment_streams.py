"""Augmentation depends on seed, epoch, sample and its own settings, and on nothing else."""

from __future__ import annotations

import hashlib
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer import config as configuration
from trainer.config import AugmentConfig
from trainer.config.augment import PRESETS, active
from trainer.data.augment import augment, draw
from trainer.data.augment.streams import Key
from trainer.errors import ConfigError

SHAPE = (9, 8, 7, 2)
VOLUME = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
LABELS = np.random.default_rng(1).integers(0, 4, SHAPE[:3]).astype(np.uint8)
MM = (2.0, 2.0, 2.5)
SURE = {"probability": 1.0}
NAMES = (
    "affine",
    "elastic",
    "motion",
    "ghosting",
    "blur",
    "bias_field",
    "rician_noise",
    "gaussian_noise",
    "gamma",
    "cut_out",
)
SECTIONS = {**dict.fromkeys(NAMES, SURE), "cut_out": {**SURE, "size": 8.0}}
ALL = AugmentConfig(**SECTIONS, mirror={"left_right": 0.5, "back_front": 0.5}, scale=0.1)


def drawn(config, seed=1, epoch=2, sample=3):
    return draw(config, seed, epoch, sample, SHAPE, MM)


def test_the_numbers_of_a_stream_are_these_for_ever():
    """A run that is resumed with another version of numpy, or of this package, must go on with the same."""
    stream = Key(1, 2, 3, "affine", 0).open()
    assert stream.uniforms(0, 1, 3).tolist() == pytest.approx(UNIFORMS, abs=0)
    np.testing.assert_allclose(Key(1, 2, 3, "noise", 1).open().normals((5,)), NORMALS, rtol=0, atol=2e-6)


UNIFORMS = [0.7122011010597504, 0.3278368962666275, 0.9185626820366457]
NORMALS = [-1.21639, -0.265124, -1.411566, -0.056314, -0.722861]


def test_every_name_of_a_change_is_tested_here():
    known = {
        name
        for name, field in AugmentConfig.model_fields.items()
        if configuration.section_of(field.annotation)
    }
    assert known == {*NAMES, "mirror"}


@pytest.mark.parametrize("name", NAMES)
def test_switching_one_change_on_or_off_leaves_the_numbers_of_the_others(name):
    with_it = drawn(ALL).to_json()
    without = drawn(ALL.model_copy(update={name: getattr(AugmentConfig(), name)})).to_json()
    assert with_it.pop(name)
    assert with_it == without


def test_the_plain_changes_are_left_alone_by_the_others():
    plain = AugmentConfig(flip=True, shift=2, scale=0.1, noise=0.3)
    both = AugmentConfig(flip=True, shift=2, scale=0.1, noise=0.3, gaussian_noise=SURE)
    none = AugmentConfig(gaussian_noise=SURE)
    for sample in range(5):
        zero = np.zeros(SHAPE, np.float32)
        made = [augment(zero, one, 0, 0, sample)[0] for one in (plain, both, none)]
        factor = drawn(plain, 0, 0, sample).to_json()["scale"]
        np.testing.assert_allclose(made[1] - made[0], made[2] * factor, rtol=0, atol=1e-6)


@pytest.mark.parametrize("other", [(2, 2, 3), (1, 3, 3), (1, 2, 4), (2, 1, 3)])
def test_another_seed_epoch_or_sample_draws_other_numbers(other):
    first, second = drawn(ALL).to_json(), drawn(ALL, *other).to_json()
    assert all(first[name] != second[name] for name in NAMES)


def test_streams_of_different_changes_and_channels_are_different():
    keys = [Key(0, 0, 0, name, channel) for name in (*NAMES, "mirror") for channel in range(3)]
    assert len({tuple(key.open().uniforms(0, 1, 2)) for key in keys}) == len(keys)


@pytest.mark.parametrize("name", NAMES)
def test_a_change_happens_as_often_as_asked_and_never_at_0(name):
    config = AugmentConfig(**{name: {"probability": 0.3}})
    happened = sum(name in drawn(config, sample=sample).to_json() for sample in range(300))
    share = happened / 300
    # With two channels, drawn each by itself, it happens to one of them at least with 1 - 0.7 ** 2.
    expected = 0.3 if name in ("affine", "elastic", "cut_out") else 0.51
    assert abs(share - expected) < 0.1
    assert not any(drawn(AugmentConfig(), sample=sample).to_json() for sample in range(20))


def test_probability_0_everywhere_returns_the_same_arrays():
    volume, labels = augment(VOLUME, AugmentConfig(), 0, 0, 0, LABELS)
    assert volume is VOLUME and labels is LABELS
    assert AugmentConfig().is_idle and not ALL.is_idle


@pytest.mark.parametrize("name", NAMES)
def test_inputs_are_left_as_they_are(name):
    volume, labels = VOLUME.copy(), LABELS.copy()
    volume.flags.writeable = labels.flags.writeable = False
    made, _ = augment(volume, AugmentConfig(**{name: SURE}), 0, 0, 0, labels, voxel_mm=MM)
    assert np.array_equal(volume, VOLUME) and np.array_equal(labels, LABELS)
    assert not np.array_equal(made, VOLUME)


def digests(threads: int) -> list[str]:
    def one(sample: int) -> str:
        made, labels = augment(VOLUME, ALL, 5, 1, sample, LABELS, voxel_mm=MM)
        return hashlib.sha256(made.tobytes() + labels.tobytes()).hexdigest()

    samples = list(range(24))
    random.Random(threads).shuffle(samples)
    with ThreadPoolExecutor(threads) as pool:
        return [found for _, found in sorted(zip(samples, pool.map(one, samples), strict=True))]


def test_the_number_of_threads_and_their_order_do_not_matter():
    expected = digests(1)
    assert len(set(expected)) == 24
    for threads in (2, 5):
        assert digests(threads) == expected


probabilities = st.sampled_from([0.0, 0.5, 1.0])


def section(**fields):
    return st.fixed_dictionaries({"probability": probabilities}, optional=fields)


def number(high):
    return st.floats(0, high, allow_subnormal=False)


CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        "preset": st.sampled_from([None, *PRESETS]),
        "shift": st.integers(0, 20),
        "scale": number(0.9),
        "noise": number(3),
        "mirror": st.fixed_dictionaries({"left_right": probabilities, "bottom_top": probabilities}),
        "affine": section(rotate=number(180), scale=number(0.9), shear=number(0.9), translate=number(500)),
        # Together, so that none folds.
        "elastic": section(spacing=st.floats(20, 500), displacement=number(8)),
        "motion": section(movements=st.integers(1, 16), rotate=number(180), translate=number(500)),
        "ghosting": section(ghosts=st.integers(2, 40), intensity=number(1), centre=number(0.9)),
        "blur": section(sigma=number(60)),
        "bias_field": section(strength=number(1), order=st.integers(1, 5)),
        "rician_noise": section(deviation=number(5)),
        "gaussian_noise": section(deviation=number(5)),
        "gamma": section(log_gamma=number(3)),
        "cut_out": section(boxes=st.integers(1, 5), size=st.floats(0.1, 500)),
    },
)


@settings(max_examples=120)
@given(
    CONFIGS,
    st.tuples(*[st.integers(1, 9)] * 3, st.integers(1, 3)),
    st.tuples(*[st.floats(0.3, 12)] * 3),
    st.integers(0, 2**40),
    st.sampled_from(["normal", "constant", "zero"]),
)
def test_any_configuration_gives_finite_volumes_of_the_same_shape_and_type(fields, shape, mm, sample, kind):
    # A preset's own displacement may be too large for a spacing given beside it.
    if fields.get("preset") and "elastic" in fields:
        fields["elastic"] = {"spacing": 20.0, "displacement": 8.0, **fields["elastic"]}
    volume = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    volume = {"normal": volume, "constant": np.ones_like(volume), "zero": np.zeros_like(volume)}[kind]
    labels = np.random.default_rng(1).integers(0, 4, shape[:3]).astype(np.uint8)
    before = volume.copy(), labels.copy()
    config = AugmentConfig(**fields)
    first = augment(volume, config, 7, 3, sample, labels, voxel_mm=mm)
    for made, dtype, given_shape in zip(first, (np.float32, np.uint8), (shape, shape[:3]), strict=True):
        assert made.dtype == dtype and made.shape == given_shape
    assert np.isfinite(first[0]).all()
    assert set(np.unique(first[1])) <= {0, *np.unique(labels)}
    assert np.array_equal(volume, before[0]) and np.array_equal(labels, before[1])
    second = augment(volume, config, 7, 3, sample, labels, voxel_mm=mm)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_preset_is_spelled_out_and_what_is_given_beside_it_counts():
    text = "name: a\ndata: {shards: s, augment: {preset: strong, affine: {rotate: 3}}}\n"
    config = configuration.parse(text, ["data.augment.gamma.probability=0"])
    augmentation = config.data.augment
    assert augmentation.affine.rotate == 3 and augmentation.affine.probability == 0.9
    assert "gamma" not in active(augmentation.model_dump())
    assert augmentation.cut_out.probability == PRESETS["strong"]["cut_out"]["probability"]
    assert configuration.parse(configuration.dump(config)) == config


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_valid_and_do_not_mirror(name):
    found = active(AugmentConfig(preset=name).model_dump())
    assert set(found) == set(PRESETS[name])


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("data.augment.affine.rotat=3", "data.augment.affine.rotate"),
        ("data.augment.blur.probability=2", "must be at most 1"),
        ("data.augment.elastic={displacement: 50}", "could fold"),
        ("data.augment={flip: true, mirror: {left_right: 0.5}}", "do the same"),
        ("data.augment.preset=huge", "light"),
        ("data.augment.preset={a: 1}", "preset"),
        ("data.augment={preset: light, affine: 3}", "data.augment.affine"),
    ],
)
def test_wrong_settings_are_refused_by_name(override, said):
    with pytest.raises(ConfigError, match=said):
        configuration.parse("name: a\ndata: {shards: s}\n", [override])
