"""Tissue volumes that are fitted to a registered brain."""

from __future__ import annotations

import numpy as np
import pytest

from trainer.data.images.linear import average_brain, brain, tissue
from trainer.data.images.linear.average_brain import FIELD_OF_VIEW

AVERAGE = average_brain.of_size(brain.SIZE)
VOXEL_ML = (FIELD_OF_VIEW / brain.SIZE) ** 3 / 1000


def scan(lost=0.0, seed=0, **brightness):
    """A brain that has lost a share of its grey matter to CSF, and mL of its tissues."""
    signal = {"grey": 600.0, "white": 800.0, "csf": 250.0} | brightness
    sharp = np.argmax([AVERAGE.grey, AVERAGE.white, AVERAGE.mask - AVERAGE.grey - AVERAGE.white], axis=0)
    inside = AVERAGE.mask > 0.5
    random = np.random.default_rng(seed)
    sharp = np.where((sharp == 0) & (random.random(sharp.shape) < lost), 2, sharp)
    values = np.choose(sharp, [signal[name] for name in tissue.NAMES])
    values = np.where(inside, values + random.normal(0, 30, values.shape), np.nan).astype(np.float32)
    amounts = {name: float(((sharp == n) & inside).sum()) * VOXEL_ML for n, name in enumerate(tissue.NAMES)}
    return values, amounts


@pytest.mark.parametrize("lost", [0.0, 0.1, 0.3])
def test_sharp_tissues_are_counted_to_a_hundredth(lost):
    values, amounts = scan(lost)
    found = tissue.volumes_ml(values, np.isfinite(values), np.eye(4))
    assert found == pytest.approx(amounts, rel=0.01)


def test_millilitres_are_of_the_scan_and_not_of_the_average_brain():
    values, amounts = scan()
    larger = np.diag([1 / 1.1, 1 / 1.1, 1 / 1.1, 1.0])  # of a head a tenth larger than the average
    found = tissue.volumes_ml(values, np.isfinite(values), larger)
    assert found == pytest.approx({name: 1.331 * ml for name, ml in amounts.items()}, rel=0.01)


def test_fluid_about_a_shrunken_brain_counts():
    values, amounts = scan()
    rim = np.isfinite(values) & (AVERAGE.mask < 0.9)
    values[rim] = 250
    found = tissue.volumes_ml(values, np.isfinite(values) & ~rim, np.eye(4))
    assert found["csf"] > amounts["csf"]
    assert sum(found.values()) == pytest.approx(sum(amounts.values()), rel=0.001)


@pytest.mark.parametrize("brightness", [{"csf": 900.0}, {"grey": 820.0, "white": 580.0}])
def test_a_contrast_that_is_not_t1_has_none(brightness):
    values, _ = scan(**brightness)
    assert tissue.volumes_ml(values, np.isfinite(values), np.eye(4)) is None


def test_without_contrast_there_are_none():
    values = np.where(AVERAGE.mask > 0.5, 100.0, np.nan).astype(np.float32)
    assert tissue.volumes_ml(values, np.isfinite(values), np.eye(4)) is None
