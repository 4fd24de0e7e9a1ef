"""Changes of intensity against references computed otherwise."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage

from trainer.config import AugmentConfig
from trainer.config.augment import (
    BiasFieldConfig,
    BlurConfig,
    CutOutConfig,
    GammaConfig,
    GhostingConfig,
    MotionConfig,
    NoiseConfig,
)
from trainer.data.augment import augment, cut_out, intensity, kspace
from trainer.data.augment.affine import Affine
from trainer.data.augment.change import VolumeGrid
from trainer.data.augment.kspace import Ghosting, Motion
from trainer.data.augment.streams import Key
from trainer.data.augment.warping import warp

GRID = VolumeGrid((14, 12, 11), (2.0, 2.0, 2.5))
BACKGROUND = -1.5


def stream(sample=0, name="test"):
    return Key(0, 0, sample, name).open()


def head() -> np.ndarray:
    """A bright ellipsoid with some texture on background."""
    place = np.indices(GRID.shape) - np.array(GRID.shape).reshape(3, 1, 1, 1) / 2
    inside = ((place / np.array([4.0, 4.0, 3.5]).reshape(3, 1, 1, 1)) ** 2).sum(axis=0) < 1
    texture = np.random.default_rng(1).uniform(-0.5, 0.5, GRID.shape)
    return np.where(inside, 1 + texture, BACKGROUND).astype(np.float32)


HEAD = head()


# Bias field


def test_a_bias_fields_logarithm_is_a_polynomial_of_the_given_order_with_mean_0():
    for order in (1, 2, 3):
        drawn = intensity.draw_bias_field(stream(order), BiasFieldConfig(strength=0.4, order=order), GRID)
        found = drawn.logarithm(GRID.shape).astype(np.float64)
        axes = np.meshgrid(*(np.linspace(-1, 1, size) for size in GRID.shape), indexing="ij")
        degrees = [d for d in np.ndindex(4, 4, 4) if sum(d) <= order]
        terms = np.stack(
            [np.prod([a**d for a, d in zip(axes, ds, strict=True)], axis=0).ravel() for ds in degrees]
        )
        fitted = terms.T @ np.linalg.lstsq(terms.T, found.ravel(), rcond=None)[0]
        np.testing.assert_allclose(fitted, found.ravel(), rtol=0, atol=1e-5)
        fine = drawn.logarithm((41, 40, 39))
        axes = np.meshgrid(*(np.linspace(-1, 1, size) for size in fine.shape), indexing="ij")
        found = fine[sum(axis**2 for axis in axes) <= 1]
        assert abs(found.mean()) < 0.05 * drawn.strength
        assert np.abs(found).max() == pytest.approx(drawn.strength, rel=0.1)


def test_a_bias_field_multiplies_what_is_brighter_than_the_background():
    drawn = intensity.draw_bias_field(stream(1), BiasFieldConfig(strength=0.5), GRID)
    made = drawn.applied(HEAD, BACKGROUND)
    assert np.array_equal(made[HEAD == BACKGROUND], HEAD[HEAD == BACKGROUND])
    inside = HEAD > BACKGROUND
    ratio = (made - BACKGROUND)[inside] / (HEAD - BACKGROUND)[inside]
    np.testing.assert_allclose(ratio, np.exp(drawn.logarithm(GRID.shape))[inside], rtol=1e-5)
    assert ratio.max() / ratio.min() > 1.05


# Noise


def test_gaussian_noise_has_the_drawn_deviation_no_mean_and_no_memory():
    volume = np.zeros((48, 48, 48), np.float32)
    drawn = intensity.draw_gaussian(stream(), NoiseConfig(deviation=0.3), VolumeGrid(volume.shape))
    found = drawn.applied(volume, 0.0) / drawn.deviation
    count = found.size
    assert 0 < drawn.deviation <= 0.3
    assert abs(found.mean()) < 4 / np.sqrt(count)
    assert abs(found.var() - 1) < 4 * np.sqrt(2 / count)
    assert abs((found**4).mean() - 3) < 4 * np.sqrt(96 / count)
    for axis in range(3):
        assert abs((found * np.roll(found, 1, axis)).mean()) < 4 / np.sqrt(count)
    # Two normals come from each random word: one must not tell the other.
    first, second = found.ravel()[: count // 2], found.ravel()[count // 2 :]
    assert abs((first * second).mean()) < 4 / np.sqrt(count // 2)
    assert abs((first**2 * second**2).mean() - 1) < 4 * np.sqrt(8 / (count // 2))


def test_rician_noise_follows_the_rice_distribution():
    stats = pytest.importorskip("scipy.stats")
    shape = (40, 40, 40)
    for signal in (0.0, 0.4, 3.0):
        volume = np.full(shape, BACKGROUND + signal, np.float32)
        drawn = intensity.Rician(0.2, Key(0, 0, int(10 * signal), "rice"))
        found = (drawn.applied(volume, BACKGROUND) - BACKGROUND).astype(np.float64)
        expected = stats.rice(signal / 0.2, scale=0.2)
        assert found.min() >= 0
        assert found.mean() == pytest.approx(expected.mean(), abs=4 * expected.std() / np.sqrt(found.size))
        assert found.std() == pytest.approx(expected.std(), rel=0.02)


def test_noise_is_the_same_each_time_it_is_applied():
    drawn = intensity.draw_gaussian(stream(), NoiseConfig(), GRID)
    assert np.array_equal(drawn.applied(HEAD, BACKGROUND), drawn.applied(HEAD, BACKGROUND))


# Gamma


@pytest.mark.parametrize("power", [0.5, 1.0, 1.7])
def test_gamma_keeps_the_range_and_the_order_of_intensities(power):
    made = intensity.Gamma(power).applied(HEAD, BACKGROUND)
    low, high = HEAD.min(), HEAD.max()
    assert made.min() == pytest.approx(low, abs=1e-6) and made.max() == pytest.approx(high, abs=1e-6)
    order = np.argsort(HEAD, axis=None, kind="stable")
    assert np.diff(made.ravel()[order]).min() >= -1e-6
    expected = low + (high - low) * ((HEAD.astype(np.float64) - low) / (high - low)) ** power
    np.testing.assert_allclose(made, expected, rtol=0, atol=2e-6)


def test_gamma_leaves_a_constant_volume_alone():
    flat = np.full(GRID.shape, 2.0, np.float32)
    assert np.array_equal(intensity.Gamma(2.0).applied(flat, 2.0), flat)


def test_gamma_darkens_as_often_as_it_brightens():
    drawn = [
        intensity.draw_gamma(stream(sample), GammaConfig(log_gamma=0.4), GRID).gamma for sample in range(300)
    ]
    assert np.exp(-0.4) <= min(drawn) < np.exp(-0.38) and np.exp(0.38) < max(drawn) <= np.exp(0.4)
    assert 120 < sum(power > 1 for power in drawn) < 180


# Blur


def test_blur_is_scipys_gaussian_with_each_axis_its_own_width():
    drawn = intensity.draw_blur(stream(2), BlurConfig(sigma=4.0), GRID)
    expected = HEAD.astype(np.float64)
    for axis, (sigma, step) in enumerate(zip(drawn.sigma, GRID.voxel_mm, strict=True)):
        reach = int(np.ceil(3 * sigma / step))
        expected = ndimage.gaussian_filter1d(expected, sigma / step, axis, mode="nearest", radius=reach)
    np.testing.assert_allclose(drawn.applied(HEAD, BACKGROUND), expected, rtol=0, atol=1e-5)
    assert len(set(drawn.sigma)) == 3
    assert np.abs(expected - HEAD).max() > 0.3


def test_blur_keeps_a_constant():
    flat = np.full(GRID.shape, 1.7, np.float32)
    np.testing.assert_allclose(intensity.Blur((3.0,) * 3, GRID.voxel_mm).applied(flat, 0.0), flat, rtol=1e-6)


# Motion


def spliced(channel, background, drawn):
    """The whole three-dimensional k-space of each position, its planes put together one by one."""
    signal = channel.astype(np.float64) - background
    spaces = []
    for position in drawn.positions:
        seen = warp([signal.astype(np.float32)], None, drawn.grid, position, None, [0.0])[0][0]
        spaces.append(np.fft.fftshift(np.fft.fftn(seen.astype(np.float64))))
    together = np.empty_like(spaces[0])
    for line in range(channel.shape[drawn.axis]):
        plane = (slice(None),) * drawn.axis + (line,)
        together[plane] = spaces[sum(start <= line for start in drawn.starts)][plane]
    return np.abs(np.fft.ifftn(np.fft.ifftshift(together))) + background


@pytest.mark.parametrize("sample", range(6))
def test_motion_is_what_splicing_whole_k_spaces_gives(sample):
    drawn = kspace.draw_motion(stream(sample), MotionConfig(movements=1 + sample % 3, rotate=15.0), GRID)
    found = drawn.applied(HEAD, BACKGROUND)
    np.testing.assert_allclose(found, spliced(HEAD, BACKGROUND, drawn), rtol=0, atol=2e-5)


def test_motion_is_at_rest_while_the_centre_of_k_space_is_acquired():
    for sample in range(60):
        drawn = kspace.draw_motion(stream(sample), MotionConfig(movements=3), GRID)
        centre = GRID.shape[drawn.axis] // 2
        assert drawn.positions[sum(start <= centre for start in drawn.starts)] == Affine()
        assert sum(position != Affine() for position in drawn.positions) == 3
        assert all(position.factors == (1.0, 1.0, 1.0) for position in drawn.positions)


def test_motion_to_nowhere_changes_nothing():
    still = Motion(1, (3, 7), (Affine(), Affine(), Affine()), GRID)
    np.testing.assert_allclose(still.applied(HEAD, BACKGROUND), HEAD, rtol=0, atol=1e-5)


def test_a_movement_late_in_the_scan_leaves_ghosts_outside_the_head():
    drawn = Motion(0, (9,), (Affine(), Affine(translate=(6.0, 0.0, 0.0))), GRID)
    made = drawn.applied(HEAD, BACKGROUND)
    outside = HEAD == BACKGROUND
    assert made[outside].max() > BACKGROUND + 0.1
    # What moves along the phase axis stays in its line along it.
    lit = (HEAD > BACKGROUND).any(axis=0)
    assert np.abs(made - HEAD)[:, ~lit].max() < 1e-4


# Ghosting


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_ghosts_lie_along_the_phase_axis_at_the_nth_part_of_the_field_of_view(axis):
    shape = (24, 24, 24)
    point = np.zeros(shape, np.float32)
    point[5, 6, 7] = 1
    made = Ghosting(axis, 4, 0.6, 0.0).applied(point, 0.0)
    line = tuple(slice(None) if a == axis else at for a, at in enumerate((5, 6, 7)))
    others = made.copy()
    others[line] = 0
    assert np.abs(others).max() < 1e-6
    # Weakening every 4th of 24 frequencies takes 0.6 / 4 from the point and from copies a quarter apart;
    # frequency 0, which is left alone, gives 0.6 / 24 back to all. A magnitude has no sign.
    expected = np.full(24, 0.6 / 24)
    expected[(5, 6, 7)[axis]] += 1
    expected[((5, 6, 7)[axis] + 6 * np.arange(4)) % 24] -= 0.6 / 4
    np.testing.assert_allclose(made[line], np.abs(expected), rtol=0, atol=1e-6)


def test_ghosting_of_no_intensity_changes_nothing_and_a_protected_centre_is_protected():
    np.testing.assert_allclose(Ghosting(1, 3, 0.0, 0.0).applied(HEAD, BACKGROUND), HEAD, rtol=0, atol=1e-5)
    smooth = 2 + np.cos(2 * np.pi * 2 * np.arange(24) / 24)  # frequencies 0 and 2 alone
    volume = np.broadcast_to(smooth[:, None, None], (24, 8, 8)).astype(np.float32)
    np.testing.assert_allclose(Ghosting(0, 2, 1.0, 0.2).applied(volume, 0.0), volume, rtol=0, atol=1e-5)
    assert np.abs(Ghosting(0, 2, 1.0, 0.1).applied(volume, 0.0) - volume).max() > 0.5


def test_the_number_of_ghosts_reaches_from_2_to_the_given_one():
    found = {kspace.draw_ghosting(stream(s), GhostingConfig(ghosts=5), GRID).ghosts for s in range(100)}
    assert found == {2, 3, 4, 5}


# Cut-out


@pytest.mark.parametrize("channels", [1, 2])
def test_a_cut_out_is_one_box_of_the_drawn_edges_in_all_channels(channels):
    volume = np.ones((*GRID.shape, channels), np.float32)
    for sample in range(30):
        drawn = cut_out.draw(stream(sample), CutOutConfig(size=16.0), GRID)
        made = drawn.applied(volume)
        (edge,) = drawn.edges
        assert all(8 - s / 2 <= e * s <= 16 + s / 2 for e, s in zip(edge, GRID.voxel_mm, strict=True))
        assert (made == 0).sum() == np.prod(edge) * channels
        assert ((made == 0) | (made == 1)).all()
        corners = np.argwhere(made[..., 0] == 0)
        assert tuple(np.ptp(corners, axis=0) + 1) == edge
        middle, size = corners.mean(axis=0) + 0.5, np.array(GRID.shape)
        assert (np.abs(middle - size / 2) <= 0.3 * size + 0.5).all()


def test_a_box_larger_than_the_volume_takes_all_of_it_and_labels_stay():
    config = AugmentConfig(cut_out={"probability": 1.0, "size": 1000.0})
    labels = np.arange(5**3, dtype=np.uint8).reshape(5, 5, 5)
    made, after = augment(np.ones((5, 5, 5, 1), np.float32), config, 0, 0, 0, labels)
    assert not made.any()
    assert np.array_equal(after, labels)


def test_intensities_are_drawn_for_each_channel():
    config = AugmentConfig(gaussian_noise={"probability": 1.0, "deviation": 0.5})
    made, _ = augment(np.zeros((10, 10, 10, 2), np.float32), config, 0, 0, 0)
    first, second = made[..., 0], made[..., 1]
    assert first.std() > 0 and second.std() > 0 and first.std() != second.std()
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.15
