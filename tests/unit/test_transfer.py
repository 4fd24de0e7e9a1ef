"""Weights of another run, frozen layers, learning rates of their own."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from shard_sets import make_shard_set
from wording import fails_with

from trainer import models, transfer
from trainer.config import OptimizerConfig, TransferConfig
from trainer.data.splits.splits import Split
from trainer.errors import ConfigError, LeakError, RunError
from trainer.strategies import optimizers
from trainer.strategies.rate_factors import scale_rates

SHAPE = (16, 16, 16, 1)


def network(seed=0, outputs=2):
    keras.utils.set_random_seed(seed)
    return models.build("tiny", SHAPE, outputs, width=2)


def saved(model, path):
    model.save(path / "other.keras")
    return path / "other.keras"


def test_layers_of_the_same_name_and_shape_are_taken(tmp_path):
    source, model = network(1), network(2, outputs=3)
    told = transfer.start(model, saved(source, tmp_path))
    *body, head = [layer for layer in model.layers if layer.weights]
    for layer in body:
        for mine, theirs in zip(layer.get_weights(), source.get_layer(layer.name).get_weights(), strict=True):
            np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(head.get_weights()[0], network(2, outputs=3).layers[-1].get_weights()[0])
    assert f"{len(body)} of {len(body) + 1} layers; new: {head.name}" in told


def test_a_network_that_shares_nothing_is_refused(tmp_path):
    other = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    with fails_with(RunError):
        transfer.start(network(), saved(other, tmp_path))
    (tmp_path / "broken.keras").write_text("no model")
    with fails_with(RunError):
        transfer.start(network(), tmp_path / "broken.keras")
    with fails_with(RunError):
        transfer.start(network(), tmp_path / "nowhere")


def test_frozen_layers_stay_as_they_are_moving_statistics_too():
    model = network()
    transfer.freeze(model, TransferConfig(freeze=("stage*", "*norm*")))
    frozen = [layer for layer in model.layers if layer.weights and not layer.trainable]
    assert frozen and model.trainable_variables
    before = [layer.get_weights() for layer in frozen]
    model.compile(keras.optimizers.SGD(1.0), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.train_on_batch(np.random.default_rng(0).normal(size=(4, *SHAPE)), np.array([0, 1, 0, 1]))
    for layer, weights in zip(frozen, before, strict=True):
        for now, then in zip(layer.get_weights(), weights, strict=True):
            np.testing.assert_array_equal(now, then)


def test_a_pattern_that_fits_nothing_is_an_error_with_a_suggestion():
    with fails_with(ConfigError):
        transfer.freeze(network(), TransferConfig(freeze=("hed_logits",)))
    with fails_with(ConfigError):
        transfer.freeze(network(), TransferConfig(freeze=("*",)))


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_a_rate_factor_is_another_learning_rate(name):
    """Two variables at rate r and factor 0.1: as if each had been trained alone at r and 0.1 r."""
    config = OptimizerConfig(name=name, weight_decay=0.1)
    gradients = [np.array([0.3, -0.2], "float32"), np.array([0.5, 0.1], "float32")]

    def trained(rate, factor=None):
        variables = [keras.Variable([1.0, 2.0], name=letter) for letter in "ab"]
        optimizer = optimizers.plain(config, rate)
        optimizer = scale_rates(optimizer, {} if factor is None else {variables[1].path: factor})
        optimizer.build(variables)
        for _ in range(3):
            optimizer.apply(gradients, variables)
        return [variable.numpy() for variable in variables]

    both, full, tenth = trained(0.1, 0.1), trained(0.1), trained(0.01)
    np.testing.assert_allclose(both[0], full[0], rtol=1e-6)
    np.testing.assert_allclose(both[1], tenth[1], rtol=1e-6)
    assert not np.allclose(both[1], full[1])


def test_the_first_pattern_that_fits_counts():
    model = network()
    factors = transfer.rate_factors(model, TransferConfig(rate_factors={"head_*": 1.0, "*": 0.1}))
    assert set(factors) == {variable.path for variable in model.trainable_variables}
    assert {path.startswith("head_") for path, factor in factors.items() if factor == 1.0} == {True}


def test_subjects_that_trained_the_first_run_must_not_judge_the_second(tmp_path):
    def volumes(*subjects):
        return tuple(SimpleNamespace(subject=subject) for subject in subjects)

    run = tmp_path / "first"
    run.mkdir()
    for name in ("config.yaml", "result.json", "model.keras"):
        (run / name).write_text("")
    shards = make_shard_set(tmp_path / "shards")
    known = [volume.subject for volume in shards.volumes]
    facts = {"shards": {"path": str(shards.path)}, "split": {"train": [0, 1], "validation": [2], "test": [3]}}
    (run / "run.json").write_text(json.dumps(facts))

    def held_out(*subjects):
        there = volumes("someone", *subjects)
        split = Split((0,), (), tuple(range(1, len(there))))
        return SimpleNamespace(volumes=there), split

    assert transfer.check_unseen(run, *held_out(known[3], "new"), stop=True) is None
    with pytest.raises(
        LeakError, match=f"trained on 2 subjects that this run holds out: {known[0]}, {known[2]}"
    ):
        transfer.check_unseen(run, *held_out(known[2], known[0]), stop=True)
    assert "warning" in (transfer.check_unseen(run, *held_out(known[2]), stop=False) or "")
    shutil.rmtree(shards.path)
    assert "cannot check" in (transfer.check_unseen(run, *held_out(known[2]), stop=True) or "")
