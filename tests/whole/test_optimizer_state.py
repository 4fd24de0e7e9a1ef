"""The optimizer's state finds its variables by name, in whatever order they are kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

keras = pytest.importorskip("keras")


from trainer.errors import RunError  # noqa: E402
from trainer.run_folder import optimizer_state  # noqa: E402

OLD = Path(__file__).parent / "checkpoints_of_old" / "format-1"


def layers(*names: str | None) -> list[keras.Variable]:
    """Kernel and bias of dense layers of one shape: only names tell them apart."""
    made = [keras.layers.Dense(2, name=name) for name in names]
    for layer in made:
        layer.build((None, 2))
    return [variable for layer in made for variable in layer.trainable_variables]


def built(variables: list[keras.Variable], seed: int = 0, **options) -> keras.Optimizer:
    optimizer = keras.optimizers.Adam(0.1, **options)
    optimizer.build(variables)
    random = np.random.default_rng(seed)
    for variable in optimizer.variables:
        variable.assign(np.asarray(random.normal(size=tuple(variable.shape)) * 10).astype(variable.dtype))
    return optimizer


def rewritten(path: Path, change) -> None:
    arrays = optimizer_state.read_arrays(path)
    np.savez(path, allow_pickle=False, **change(arrays))


def test_state_follows_the_name_when_layers_come_in_another_order(tmp_path):
    """All shapes are alike, so that state by position would go to the wrong layers in silence."""
    optimizer = built(layers("a", "b"), use_ema=True)
    optimizer_state.write(tmp_path / "state.npz", optimizer)
    other = built(layers("b", "a"), seed=1, use_ema=True)
    optimizer_state.read(tmp_path / "state.npz", other)
    kernels = {
        name: [np.asarray(one._momentums[place]), np.asarray(one._model_variables_moving_average[place])]
        for name, one, place in (
            ("a", optimizer, 0),
            ("b", optimizer, 2),
            ("a now", other, 2),
            ("b now", other, 0),
        )
    }
    for name in ("a", "b"):
        np.testing.assert_array_equal(kernels[name], kernels[f"{name} now"])
    assert not np.array_equal(kernels["a"], kernels["b"])
    assert int(other.iterations.numpy()) == int(optimizer.iterations.numpy())


def test_numbers_that_keras_counts_layers_with_do_not_matter(tmp_path):
    """A second network of one process has other ones, such as the second fold's."""
    first, second = layers(None, None), layers(None, None)
    assert [v.path for v in first] != [v.path for v in second]
    optimizer, other = built(first), built(second, seed=1)
    optimizer_state.write(tmp_path / "state.npz", optimizer)
    optimizer_state.read(tmp_path / "state.npz", other)
    for was, now in zip(optimizer.variables, other.variables, strict=True):
        np.testing.assert_array_equal(was, now)


def test_two_layers_of_one_name_keep_their_own_state(tmp_path):
    optimizer, other = built(layers("a", "a")), built(layers("a", "a"), seed=1)
    optimizer_state.write(tmp_path / "state.npz", optimizer)
    optimizer_state.read(tmp_path / "state.npz", other)
    for was, now in zip(optimizer.variables, other.variables, strict=True):
        np.testing.assert_array_equal(was, now)


def test_the_state_within_a_loss_scale_is_kept_with_that_of_the_loss_scale(tmp_path):
    path = tmp_path / "state.npz"
    scaled = []
    for _ in range(2):
        one = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))
        one.build(layers("a"))
        scaled.append(one)
    for place, variable in enumerate(scaled[0].variables):
        variable.assign(np.full(variable.shape, place + 1).astype(variable.dtype))
    optimizer_state.write(path, scaled[0])
    optimizer_state.read(path, scaled[1])
    for was, now in zip(scaled[0].variables, scaled[1].variables, strict=True):
        np.testing.assert_array_equal(was, now)
    names = optimizer_state.read_arrays(path).keys()
    assert {"common/iteration", "common/dynamic_scale", "common/inner/iteration", "00001/momentum"} < names


def test_scalars_of_an_optimizer_of_two_variables_without_slots_are_common(tmp_path):
    """Keras' own list of variables is then as long as the network's."""
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(layers("a"))
    optimizer_state.write(tmp_path / "state.npz", optimizer)
    names = optimizer_state.read_arrays(tmp_path / "state.npz").keys()
    assert names == {"variables", "common/iteration", "common/learning_rate"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays: {k: v for k, v in arrays.items() if k != "00002/velocity"},
         r"velocity of b/kernel is missing"),
        (lambda arrays: {k: v for k, v in arrays.items() if k != "common/iteration"},
         r"common/iteration is missing"),
        (lambda arrays: {**arrays, "00001/extra": np.zeros(2)}, r"this one has no extra of a/bias"),
        (lambda arrays: {**arrays, "99999/extra": np.zeros(2)}, r"this one has no 99999/extra"),
        (lambda arrays: {**arrays, "00000/momentum": np.zeros((2, 3), "float32")},
         r"momentum of a/kernel is float32 \(2, 3\) there, and float32 \(2, 2\) here"),
        (lambda arrays: {**arrays, "variables": np.array(["a/kernel", "a/bias", "c/kernel", "c/bias"])},
         r"of 4 trained variables.* b/kernel is only in this network, c/kernel only in the file"),
        (lambda arrays: {k: v for k, v in arrays.items() if k != "variables"}, r"of 0 trained variables"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named_and_nothing_is_changed(tmp_path, change, message):
    path = tmp_path / "state.npz"
    optimizer_state.write(path, built(layers("a", "b")))
    rewritten(path, change)
    other = built(layers("a", "b"), seed=1)
    before = [v.numpy() for v in other.variables]
    with pytest.raises(RunError, match=message) as refused:
        optimizer_state.read(path, other)
    assert str(path) in refused.value.message and "config.yaml" in refused.value.cure
    for was, now in zip(before, other.variables, strict=True):
        np.testing.assert_array_equal(was, now)
