"""A network of patches is asked about whole volumes: the right parts, the right mean, the right person."""

from __future__ import annotations

import numpy as np
import pytest

from trainer.inference.sliding import Windows, blended_logits, mean_outputs

VOLUMES = np.random.default_rng(0).normal(size=(3, 9, 8, 6, 1)).astype(np.float32)


def test_voxels_judged_by_themselves_are_judged_as_in_the_whole_volume():
    def network(x):
        return np.concatenate([x, -x, 2 * x], axis=-1)

    found = blended_logits(network, VOLUMES, Windows((4, 4, 3), batch=3))
    raised = np.exp(network(VOLUMES))
    assert found.dtype == np.float32
    assert np.allclose(np.exp(found), raised / raised.sum(axis=-1, keepdims=True), atol=1e-6)


def test_certain_voxels_have_finite_logits():
    found = blended_logits(lambda x: np.concatenate([x * 1e4, x * 0], -1), VOLUMES, Windows((4, 4, 4)))
    assert np.isfinite(found).all()


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_the_mean_over_a_grid_counts_every_patch_once(batch):
    calls = []

    def network(x):
        calls.append(len(x))
        return x.mean(axis=(1, 2, 3))

    found = mean_outputs(network, VOLUMES[:, :8, :, :6], (4, 4, 3), batch)
    assert found.shape == (3, 1) and found.dtype == np.float32
    assert np.allclose(found, VOLUMES[:, :8, :, :6].mean(axis=(1, 2, 3)), atol=1e-6)
    assert sum(calls) == 3 * 8 and max(calls) <= batch


def test_a_grid_covers_volumes_that_are_no_multiple_of_a_patch():
    seen = np.zeros((9, 8, 6))
    places = np.arange(9 * 8 * 6, dtype=np.float32).reshape(1, 9, 8, 6, 1)

    def network(x):
        seen.ravel()[x.astype(int).ravel()] += 1
        return x[:, 0, 0, 0]

    mean_outputs(network, places, (4, 4, 4), 2)
    assert seen.min() == 1


def test_every_patch_is_told_what_belongs_to_its_volume():
    told = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], np.float32)
    found = mean_outputs(lambda x: x[1], (VOLUMES, told), (4, 4, 3), 3)
    assert np.array_equal(found, told)
    logits = blended_logits(
        lambda x: np.broadcast_to(x[1][:, None, None, None], (*x[0].shape[:4], 2)),
        (VOLUMES, told),
        Windows((4, 4, 3), batch=2),
    )
    assert np.allclose(logits[:, 0, 0, 0, 1] - logits[:, 0, 0, 0, 0], 1, atol=1e-5)
