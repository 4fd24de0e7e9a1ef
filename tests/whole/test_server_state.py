"""A server's bundles are updated as the whole variables would be; state goes there and comes back."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from wording import fails_with

from trainer.config import ServerConfig
from trainer.errors import ConfigError
from trainer.strategies import slots
from trainer.strategies.rate_factors import scale_rates
from trainer.strategies.servers.job import ServerJob, describe
from trainer.strategies.servers.server_state import BundleState, clip_scale, packed

pytestmark = pytest.mark.slow

SERVER = ServerConfig(count=2, piece_mb=40 / 2**20)  # ten numbers a message


def variables(values):
    made = [keras.Variable(value, name=name) for name, value in values.items()]
    for variable in made:
        variable._path = f"net/{variable.name}"
    return made


def values():
    rng = np.random.default_rng(0)
    return {
        "kernel": rng.normal(size=(5, 7)).astype(np.float32),
        "bias": rng.normal(size=(3,)).astype(np.float32),
        "scale": rng.normal(size=()).astype(np.float32),
    }


def _train_on_servers(job, start, gradients, *, compiled=False):
    """Weights after some updates, by number of the variable; every server plays its part in turn."""
    flat = [np.ravel(value).copy() for value in start]
    states = [BundleState(bundle, job) for bundle in job.bundles()]
    for state in states:
        parts = [flat[p.variable][p.start : p.stop] for p in state.bundle.pieces]
        for variable, part in zip(state._variables, parts, strict=True):
            variable.assign(part.reshape(variable.shape))
        state.compile(compiled)
    for step in gradients:
        for state in states:
            pieces = state.bundle.pieces
            new = state.apply(np.concatenate([np.ravel(step[p.variable])[p.start : p.stop] for p in pieces]))
            offset = 0
            for p in pieces:
                flat[p.variable][p.start : p.stop] = new[offset : offset + p.size]
                offset += p.size
    return flat, states


OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(0.1),
    "nadam": lambda: keras.optimizers.Nadam(0.1),
    "clip_norm": lambda: keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=0.1),
    "lamb": lambda: keras.optimizers.Lamb(0.1),
    "decay": lambda: keras.optimizers.AdamW(0.1, weight_decay=0.1),
    "schedule": lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)),
}


# Compiling takes some tenths of a second a piece.
COMPILED = [("decay", True), *((name, False) for name in OPTIMIZERS)]


@pytest.mark.parametrize(("name", "compiled"), COMPILED)
def test_pieces_are_updated_as_the_whole_is(name, compiled):
    optimizer = OPTIMIZERS[name]()
    whole = variables(values())
    if name == "decay":
        optimizer.exclude_from_weight_decay(var_names=["bias"])
        scale_rates(optimizer, {"net/kernel": 0.5})
    optimizer.build(whole)
    job = ServerJob.from_json(describe(optimizer, whole, SERVER, workers=1).json())
    rng = np.random.default_rng(1)
    steps = [[rng.normal(size=v.shape).astype(np.float32) for v in whole] for _ in range(3)]
    found, states = _train_on_servers(job, values().values(), steps, compiled=compiled)
    for step in steps:
        optimizer.apply([keras.ops.convert_to_tensor(g) for g in step], whole)
    for variable, flat in zip(whole, found, strict=True):
        np.testing.assert_allclose(flat, np.ravel(np.asarray(variable.value)), rtol=0, atol=1e-6)
    for state in states:
        functions = state._update.graph.as_graph_def().library.function
        assert any(one.attr["_XlaMustCompile"].b for one in functions) is compiled


def test_trying_both_ways_leaves_a_bundle_as_it_was():
    optimizer = keras.optimizers.Adam(0.1)
    whole = variables(values())
    optimizer.build(whole)
    job = describe(optimizer, whole, SERVER, workers=1)
    _, (state, *_) = _train_on_servers(
        job, values().values(), [[np.ones(v.shape, np.float32) for v in whole]]
    )
    before = state.state()
    tried = state.trial()
    assert tried.plain_s > 0 and tried.compiled_s > 0 and not tried.fault
    np.testing.assert_array_equal(state.state(), before)


def test_a_variable_is_cut_where_the_rule_allows_it():
    def most_pieces(optimizer):
        whole = variables(values())
        optimizer.build(whole)
        job = describe(optimizer, whole, SERVER, workers=1)
        return sum(piece.variable == 0 for piece in job.pieces())

    assert most_pieces(keras.optimizers.Adam(0.1)) > 1
    assert most_pieces(keras.optimizers.Adam(0.1, clipnorm=1.0)) == 1
    assert most_pieces(keras.optimizers.Lamb(0.1)) == 1


def test_state_is_given_and_taken_back():
    optimizer = keras.optimizers.Adam(0.1)
    whole = variables(values())
    optimizer.build(whole)
    job = describe(optimizer, whole, SERVER, workers=1)
    steps = [[np.ones(v.shape, np.float32) for v in whole]]
    _, states = _train_on_servers(job, values().values(), steps)
    other = BundleState(job.bundles()[0], job)
    other.set_state(states[0].state())
    np.testing.assert_array_equal(other.weights(), states[0].weights())
    np.testing.assert_array_equal(packed(other._all()), packed(states[0]._all()))
    with pytest.raises(ValueError, match="fewer bytes"):
        other.set_state(states[0].state()[:-1])


def test_slots_of_a_built_optimizer_are_told_apart():
    optimizer = keras.optimizers.Adam(0.1, use_ema=True, gradient_accumulation_steps=2)
    whole = variables(values())
    optimizer.build(whole)
    found = slots.of_built(optimizer, whole, whole=False)
    assert found.common[0] is optimizer.variables[0]
    for variable, of in zip(whole, found.of, strict=True):
        assert [tuple(v.shape) for v in of] == [tuple(variable.shape)] * 3  # average, momentum, velocity
        assert all(variable.name in v.name for v in of)


def test_an_optimizer_whose_state_cannot_be_divided_is_refused():
    optimizer = keras.optimizers.Adafactor(0.1)
    whole = variables(values())
    optimizer.build(whole)
    with fails_with(ConfigError):
        slots.of_built(optimizer, whole, whole=True)


def test_averages_that_overwrite_weights_between_micro_batches_are_refused():
    optimizer = keras.optimizers.SGD(
        0.1, use_ema=True, ema_overwrite_frequency=2, gradient_accumulation_steps=2
    )
    whole = variables(values())
    optimizer.build(whole)
    with fails_with(ConfigError):
        describe(optimizer, whole, SERVER, workers=1)


@pytest.mark.parametrize(("norm", "limit", "scale"), [(4.0, 1.0, 0.5), (0.25, 1.0, 1.0), (0.0, 1.0, 1.0)])
def test_the_scale_brings_a_norm_to_its_limit(norm, limit, scale):
    assert clip_scale(norm, limit) == pytest.approx(scale)
    assert clip_scale(norm, None) == 1.0


def test_a_norm_that_is_no_number_stays_visible():
    assert np.isnan(clip_scale(float("inf"), 1.0))
