"""Averaged weights are held in their context only."""

from __future__ import annotations

import numpy as np
import pytest

keras = pytest.importorskip("keras")

from trainer.strategies.data import averaged_weights  # noqa: E402


def network() -> keras.Model:
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])


@pytest.mark.parametrize("scaled", [False, True])
def test_the_network_holds_averages_inside_and_its_own_weights_outside(scaled):
    model, optimizer = network(), keras.optimizers.SGD(0.5, use_ema=True, ema_momentum=0.9)
    if scaled:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=1.0)
    optimizer.build(model.trainable_variables)
    before = model.trainable_variables[0].numpy()
    average = None
    for _ in range(3):
        optimizer.apply([np.ones(v.shape, "float32") for v in model.trainable_variables])
        now = model.trainable_variables[0].numpy()
        average = now if average is None else 0.9 * average + 0.1 * now
    after = model.trainable_variables[0].numpy()
    with pytest.raises(KeyError), averaged_weights(model, optimizer):
        np.testing.assert_allclose(model.trainable_variables[0].numpy(), average, rtol=1e-5, atol=1e-7)
        raise KeyError("even then they come back")
    np.testing.assert_array_equal(model.trainable_variables[0].numpy(), after)
    assert not np.allclose(before, after) and not np.allclose(average, after)


def test_without_an_average_nothing_changes():
    model, optimizer = network(), keras.optimizers.SGD()
    before = model.get_weights()
    with averaged_weights(model, optimizer):
        np.testing.assert_array_equal(model.get_weights()[0], before[0])
