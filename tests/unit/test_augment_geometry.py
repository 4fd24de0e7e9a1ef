"""Changes of place against references computed otherwise, and label maps that go with their volumes."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy import ndimage
from scipy.interpolate import BSpline
from scipy.spatial.transform import Rotation

from trainer.config.augment import MOST_ELASTIC, AffineConfig, AugmentConfig, ElasticConfig
from trainer.data.augment import affine, augment, draw, elastic
from trainer.data.augment.affine import Affine
from trainer.data.augment.change import VolumeGrid
from trainer.data.augment.elastic import Elastic
from trainer.data.augment.streams import Key
from trainer.data.augment.warping import warp

GRID = VolumeGrid((12, 10, 9), (1.0, 1.5, 2.0))
RANDOM = np.random.default_rng(3)
VOLUME = ndimage.gaussian_filter(RANDOM.normal(size=GRID.shape), 1).astype(np.float32)
TURNED = Affine((10.0, -20.0, 15.0), (1.1, 0.9, 1.05), (0.1, -0.05, 0.08), (1.0, -2.0, 0.5))
SURE = {"probability": 1.0}


def warped(volume=VOLUME, grid=GRID, moved=None, bent=None, background=-5.0):
    return warp([volume], None, grid, moved, bent, [background])[0][0]


def in_mm(moved: Affine, grid: VolumeGrid) -> np.ndarray:
    """Where tissue at each millimetre goes, 4 x 4, composed of other libraries' parts."""
    turned = Rotation.from_euler("XYZ", moved.rotate, degrees=True).as_matrix()
    sheared = np.array([[1, moved.shear[0], moved.shear[1]], [0, 1, moved.shear[2]], [0, 0, 1]])
    full, to_middle = np.eye(4), np.eye(4)
    full[:3, :3] = turned @ np.diag(moved.factors) @ sheared
    to_middle[:3, 3] = -(np.array(grid.shape) - 1) / 2 * grid.voxel_mm
    shifted = np.eye(4)
    shifted[:3, 3] = moved.translate
    return np.linalg.inv(to_middle) @ shifted @ full @ to_middle


def scipy_reference(volume, moved, grid, background):
    step = np.diag([*grid.voxel_mm, 1.0])
    back = np.linalg.inv(step) @ np.linalg.inv(in_mm(moved, grid)) @ step
    return ndimage.affine_transform(
        volume.astype(np.float64), back, order=1, mode="grid-constant", cval=background
    )


def test_an_affine_change_is_what_scipy_makes_of_the_same_matrix():
    np.testing.assert_allclose(
        warped(moved=TURNED), scipy_reference(VOLUME, TURNED, GRID, -5.0), rtol=0, atol=2e-5
    )


def test_a_shift_of_whole_voxels_moves_tissue_that_way_and_fills_with_background():
    moved = warped(moved=Affine(translate=(2.0, -1.5, 4.0)))
    expected = np.full(GRID.shape, -5.0, np.float32)
    expected[2:, :-1, 2:] = VOLUME[:-2, 1:, :-2]
    np.testing.assert_allclose(moved, expected, rtol=0, atol=1e-5)


def test_an_enlargement_enlarges():
    ball = (np.indices((24, 24, 24)) - 11.5).__pow__(2).sum(axis=0) < 36
    larger = warped(
        ball.astype(np.float32), VolumeGrid((24, 24, 24)), Affine(factors=(1.25, 1.25, 1.25)), None, 0.0
    )
    assert larger.sum() / ball.sum() == pytest.approx(1.25**3, rel=0.03)


def test_what_comes_from_far_outside_is_exactly_background():
    gone = warped(moved=Affine(translate=(1000.0, 0.0, 0.0)), background=-1.25)
    assert np.array_equal(gone, np.full(GRID.shape, -1.25, np.float32))


def test_no_movement_changes_no_bit():
    still = Elastic(4.0, 0.0, (), np.zeros((3, 8, 8, 9), np.float32))
    assert np.array_equal(warped(moved=Affine(), bent=still), VOLUME)


def bent_by(grid: VolumeGrid, spacing: float, displacement: float) -> Elastic:
    config = ElasticConfig(spacing=spacing, displacement=displacement)
    return elastic.draw(Key(0, 0, 0, "elastic").open(), config, grid)


def displacement(bent: Elastic, grid: VolumeGrid) -> np.ndarray:
    """u in mm, (3, D, H, W), from scipy's B-splines."""
    knots = [(np.arange(count + 4) - 3) * bent.spacing for count in bent.control]
    matrices = [
        BSpline.design_matrix(np.arange(size) * step, knot, 3, extrapolate=True).toarray()
        for size, step, knot in zip(grid.shape, grid.voxel_mm, knots, strict=True)
    ]
    return np.einsum("axyz,dx,hy,wz->adhw", bent.coefficients.astype(np.float64), *matrices)


@pytest.mark.parametrize("moved", [None, TURNED])
def test_an_elastic_change_is_what_scipys_splines_and_interpolation_make(moved):
    bent = bent_by(GRID, 5.0, 2.0)
    step = np.array(GRID.voxel_mm).reshape(3, 1, 1, 1)
    places = np.indices(GRID.shape) * step + displacement(bent, GRID)
    back = np.linalg.inv(in_mm(moved or Affine(), GRID))
    places = np.einsum("ab,b...->a...", back[:3, :3], places) + back[:3, 3].reshape(3, 1, 1, 1)
    expected = ndimage.map_coordinates(
        VOLUME.astype(np.float64), places / step, order=1, mode="grid-constant", cval=-5.0
    )
    np.testing.assert_allclose(warped(moved=moved, bent=bent), expected, rtol=0, atol=5e-5)
    assert np.abs(expected - VOLUME).max() > 0.1


def test_the_largest_displacement_allowed_folds_nothing():
    grid = VolumeGrid((24, 24, 24))
    for sample in range(10):
        spacing = 6.0
        config = ElasticConfig(spacing=spacing, displacement=MOST_ELASTIC * spacing)
        bent = elastic.draw(Key(0, 0, sample, "elastic").open(), config, grid)
        # The worst case: neighbours pull against each other as hard as they may.
        extreme = np.sign(bent.coefficients) * np.float32(config.displacement)
        u = displacement(dataclasses.replace(bent, coefficients=extreme), grid)
        slopes = np.stack([np.stack(np.gradient(one)) for one in u])
        determinants = np.linalg.det(np.moveaxis(slopes, (0, 1), (-2, -1)) + np.eye(3))
        assert determinants.min() > 0
        assert np.abs(u).max() <= config.displacement


def test_drawn_numbers_fill_their_ranges_and_stay_within():
    config = AffineConfig(rotate=30.0, scale=0.25, shear=0.2, translate=8.0)
    drawn = [affine.draw(Key(0, 0, sample, "affine").open(), config) for sample in range(300)]
    for name, low, high in (
        ("rotate", -30, 30),
        ("factors", 1 / 1.25, 1.25),
        ("shear", -0.2, 0.2),
        ("translate", -8, 8),
    ):
        values = np.array([getattr(one, name) for one in drawn])
        margin = 0.02 * (high - low)
        assert low <= values.min() < low + margin and high - margin < values.max() <= high, name
    assert abs(np.log([one.factors for one in drawn]).mean()) < 0.02  # as often smaller as larger


def test_the_label_map_is_the_nearest_label_of_where_the_volume_was_sampled():
    labels = RANDOM.integers(1, 5, GRID.shape).astype(np.uint8)
    bent = bent_by(GRID, 5.0, 2.0)
    places = [np.ascontiguousarray(axis, np.float32) for axis in np.indices(GRID.shape)]
    # Volumes that hold their own coordinates tell where each voxel was taken from.
    one = np.ones(GRID.shape, np.float32)
    (*found, share), moved = warp([*places, one], labels, GRID, TURNED, bent, [0.0] * 4)
    halfway = np.any([np.abs(f % 1 - 0.5) < 1e-3 for f in found], axis=0)
    sure = (share > 0.99999) & ~halfway
    nearest = tuple(np.rint(f[sure]).astype(int) for f in found)
    assert sure.sum() > 100
    assert moved.dtype == np.uint8
    assert np.array_equal(moved[sure], labels[nearest])
    away = share == 0
    assert away.any() and not moved[away].any()


def test_a_ball_and_its_label_stay_one_through_every_change_of_place():
    ball = (np.indices((20, 20, 20)) - 9.5).__pow__(2).sum(axis=0) < 30
    config = AugmentConfig(
        shift=2,
        mirror={"left_right": 0.5, "back_front": 0.5, "bottom_top": 0.5},
        affine={**SURE, "rotate": 25.0, "translate": 3.0},
        elastic={**SURE, "spacing": 10.0, "displacement": 3.0},
    )
    for sample in range(20):
        volume, labels = augment(
            ball[..., None].astype(np.float32), config, 0, 0, sample, ball.astype(np.uint8)
        )
        seen = volume[..., 0] > 0.5
        assert 2 * (seen & (labels == 1)).sum() / (seen.sum() + labels.sum()) > 0.9
        assert not np.array_equal(labels, ball)


@pytest.mark.parametrize(("name", "axis"), [("left_right", 0), ("back_front", 1), ("bottom_top", 2)])
def test_each_axis_is_mirrored_as_often_as_asked(name, axis):
    volume = VOLUME[..., None]
    config = AugmentConfig(mirror={name: 0.25})
    made = [augment(volume, config, 0, 0, row)[0] for row in range(400)]
    mirrored = [np.array_equal(one, np.flip(volume, axis)) for one in made]
    assert all(m or np.array_equal(one, volume) for m, one in zip(mirrored, made, strict=True))
    assert 65 < sum(mirrored) < 135


def test_lengths_are_millimetres_whatever_the_voxels():
    config = AugmentConfig(affine={**SURE, "rotate": 0.0, "scale": 0.0, "translate": 6.0})
    found = [draw(config, 0, 0, 5, (12, 12, 12, 1), (edge,) * 3) for edge in (1.0, 3.0)]
    assert found[0].affine == found[1].affine
    steps = [one.affine.sampling(one.grid)[1] for one in found]
    np.testing.assert_allclose(steps[0], 3 * steps[1], rtol=1e-12)


def test_all_channels_move_alike_and_each_keeps_its_own_background():
    config = AugmentConfig(affine={**SURE, "translate": 5.0}, elastic={**SURE, "displacement": 3.0})
    both = np.stack([VOLUME, 2 * VOLUME + 1], axis=-1)
    made, _ = augment(both, config, 0, 0, 0)
    np.testing.assert_allclose(made[..., 1], 2 * made[..., 0] + 1, rtol=0, atol=1e-5)
    assert made[..., 0].min() == VOLUME.min()


def test_an_elastic_change_that_could_fold_is_refused():
    with pytest.raises(ValueError, match=r"could fold.*at most 12\.8 mm"):
        ElasticConfig(displacement=13.0)
    assert math.isclose(MOST_ELASTIC, 1 / 2.479472335, abs_tol=0.005)
