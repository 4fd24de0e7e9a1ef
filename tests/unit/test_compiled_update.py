"""An optimizer's update that XLA compiles: what Keras computes, in every option, or left as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import optimizers as of

from trainer.config import OptimizerConfig
from trainer.errors import ConfigError
from trainer.ranks.agreement import Agreed
from trainer.ranks.world import World
from trainer.run_folder.run_record import UpdateOfRun
from trainer.strategies import compiled_update, optimizers
from trainer.strategies.compiled_update import Updated, compilable, is_compiled, set_compiled
from trainer.strategies.rate_factors import scale_rates

SHAPES = ((3, 3, 4), (4,), (5, 6), (7,))
SLOW_COSINE = of.schedules.CosineDecay(0.01, 10, warmup_steps=3, warmup_target=0.02)
KINDS: dict[str, Callable[[], keras.Optimizer]] = {
    "momentum": lambda: of.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.01, clipvalue=0.5),
    "clip norm": lambda: of.Adam(0.01, amsgrad=True, clipnorm=0.5),
    "averages": lambda: of.AdamW(
        SLOW_COSINE, weight_decay=0.1, global_clipnorm=1.0, use_ema=True, ema_momentum=0.9
    ),
    "accumulation": lambda: of.AdamW(0.01, gradient_accumulation_steps=3, use_ema=True),
    "norms": lambda: of.Lamb(0.01, weight_decay=0.1),
    # It multiplies a number of its own once per update, not once per group of variables.
    "its own scalar": lambda: of.Nadam(0.01),
    "factored": lambda: of.Adafactor(0.01),
    "signs": lambda: of.Lion(0.01),
    "rates": lambda: scale_rates(of.AdamW(0.01, weight_decay=0.1), {"v1": 0.25, "v2": 3.0}),
}


class OutOfReach(of.SGD):
    """An optimizer that computes in Python, which XLA cannot compile."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        told = tf.numpy_function(lambda g: g, [gradient], gradient.dtype)
        super().update_step(tf.ensure_shape(told, gradient.shape), variable, learning_rate)


class TwoRanks(World):
    """Rank 0 of two; the other one says what `others` has in turn, and otherwise the same."""

    size = 2

    def __init__(self, *others: Any) -> None:
        super().__init__()
        self.others = list(others)

    def allgather_object(self, value: Any) -> list[Any]:
        other = self.others.pop(0) if self.others else None
        return [value, value if other is None else other]


def variables(dtype: str = "float64") -> list[keras.Variable]:
    rng = np.random.default_rng(0)
    return [
        keras.Variable(rng.standard_normal(shape), dtype=dtype, name=f"v{number}")
        for number, shape in enumerate(SHAPES)
    ]


def stepping(optimizer: keras.Optimizer, mine: Sequence[keras.Variable]) -> Callable[..., Any]:
    """A step of gradients, in a graph."""
    return tf.function(lambda *gradients: optimizer.apply(list(gradients), list(mine)), autograph=False)


def trained(optimizer: keras.Optimizer, compiled: bool) -> list[np.ndarray]:
    """Weights and state after seven updates, by a step that is traced as a learner's is."""
    mine = variables()
    optimizer.build(mine)
    set_compiled(optimizer, compiled)
    step = stepping(optimizer, mine)
    rng = np.random.default_rng(1)
    for _ in range(7):
        step(*[tf.constant(rng.standard_normal(v.shape)) for v in mine])
    return [np.asarray(v.value) for v in (*mine, *optimizer.variables)]


def updated(optimizer: keras.Optimizer) -> Updated:
    mine = variables("float32")
    compilable(optimizer)
    optimizer.build(mine)
    return Updated((optimizer,), tuple(mine))


@pytest.fixture
def in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups as small as these variables need for more than one."""
    monkeypatch.setattr(compiled_update, "GROUP_BYTES", 200)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """These few weights count as many."""
    monkeypatch.setattr(compiled_update, "LEAST", 1)


# Compiling takes a second or more for each.
DEEP = ("clip norm", "factored", "signs", "norms")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.deep if name in DEEP else ()) for name in KINDS]
)
def test_compiled_it_updates_as_keras_does(name: str, in_groups: None) -> None:
    make = KINDS[name]
    plain, compiled = trained(make(), False), trained(compilable(make()), True)
    assert len(plain) == len(compiled)
    for one, other in zip(plain, compiled, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-12, atol=1e-14)
    assert not np.allclose(plain[0], variables()[0].numpy())


def test_within_a_loss_scale_it_skips_what_overflows(in_groups: None) -> None:
    found = []
    for compiled in (False, True):
        optimizer = of.LossScaleOptimizer(compilable(of.Adam(0.01)), initial_scale=8.0)
        mine = variables()
        optimizer.build(mine)
        set_compiled(optimizer, compiled)
        step = stepping(optimizer, mine)
        for factor in (1.0, np.inf, 2.0):
            step(*[tf.constant(np.full(v.shape, factor)) for v in mine])
        found.append([np.asarray(v.value) for v in (*mine, *optimizer.variables)])
    for plain, other in zip(*found, strict=True):
        np.testing.assert_allclose(other, plain, rtol=1e-12)
    assert 4.0 in [v for v in found[1] if v.shape == ()]


def test_each_group_is_compiled_and_traced_once(in_groups: None) -> None:
    optimizer = compilable(of.SGD(0.1))
    trained(optimizer, True)
    functions = optimizer._compiled_updates.values()
    assert [one.experimental_get_tracing_count() for one in functions] == [1, 1, 1]
    assert all(one._jit_compile for one in functions)


def test_a_saved_model_names_keras_own_class() -> None:
    optimizer = compilable(of.AdamW(0.1))
    assert keras.saving.serialize_keras_object(optimizer)["module"] == "keras.optimizers"
    assert keras.saving.serialize_keras_object(optimizer)["class_name"] == "AdamW"


def test_made_compilable_twice_it_is_so_once() -> None:
    optimizer = compilable(of.SGD(0.1))
    kind = type(optimizer)
    assert type(compilable(optimizer)) is kind


def test_optimizers_of_runs_can_be_compiled_and_are_not_until_it_is_decided() -> None:
    optimizer = compilable(optimizers.plain(OptimizerConfig(name="adamw"), 0.1))
    assert not is_compiled(optimizer)
    set_compiled(of.LossScaleOptimizer(optimizer), True)
    assert is_compiled(optimizer)


def test_trying_leaves_weights_and_state_as_they_were() -> None:
    mine = updated(of.AdamW(SLOW_COSINE, weight_decay=0.1))
    everything = (*mine.variables, *mine.optimizers[0].variables)
    before = [v.numpy() for v in everything]
    found = compiled_update.trial(mine.optimizers[0], mine.variables)
    assert found.plain_s > 0 and found.compiled_s > 0 and not found.fault
    for variable, value in zip(everything, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


def test_small_networks_are_not_tried() -> None:
    mine = updated(of.Adam())
    assert compiled_update.choose("auto", mine, World()) == UpdateOfRun(
        compiled=False, why="no process updates 1,000,000 weights or more"
    )
    assert not is_compiled(mine.optimizers[0])


@pytest.mark.parametrize(
    "plain_s, compiled_s, is_faster", [(1.0, 0.5, True), (1.0, 0.95, False), (1.0, 2.0, False)]
)
def test_what_is_faster_on_the_slowest_rank_is_taken(
    plain_s: float, compiled_s: float, is_faster: bool, large: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_update, "trial", lambda *_: compiled_update.Trial(1e-3, 1e-4))
    mine = updated(of.Adam())
    chosen = compiled_update.choose("auto", mine, TwoRanks(None, None, [plain_s, compiled_s, ""]))
    assert (chosen.compiled, chosen.plain_ms, chosen.compiled_ms) == (is_faster, 1000, 1000 * compiled_s)
    assert is_compiled(mine.optimizers[0]) is is_faster


def test_where_bits_must_be_the_same_again_no_timing_decides(
    large: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_update, "trial", lambda *_: compiled_update.Trial(1e-3, 1.0))
    assert compiled_update.choose("auto", updated(of.Adam()), World(), by_time=False).compiled
    assert not compiled_update.choose("auto", updated(of.Adam()), World()).compiled


def test_for_few_updates_nothing_is_tried(large: None) -> None:
    chosen = compiled_update.choose("auto", updated(of.Adam()), World(), updates=499)
    assert chosen == UpdateOfRun(compiled=False, why="fewer than 500 updates are to come")
    assert compiled_update.choose("auto", updated(of.Adam()), World(), updates=500).plain_ms is not None


@pytest.mark.parametrize("before", [True, False])
def test_a_run_that_goes_on_updates_as_before(before: bool) -> None:
    # Small, so that a new one would not be.
    mine = updated(of.Adam())
    assert compiled_update.choose("auto", mine, World(), before=before).compiled is before
    assert compiled_update.choose("none", mine, World(), before=before).compiled is False
    assert compiled_update.choose("xla", mine, World(), before=before).compiled is True


def test_ranks_on_unlike_devices_do_not_compile(large: None) -> None:
    mine = updated(of.Adam())
    chosen = compiled_update.choose("xla", mine, TwoRanks([False, "another processor"]))
    assert not chosen.compiled and "another processor" in chosen.why


def test_what_cannot_be_compiled_is_left_and_said(large: None) -> None:
    mine = updated(OutOfReach(0.1))
    chosen = compiled_update.choose("auto", mine, World())
    assert not chosen.compiled and chosen.compiled_ms is None and "rank 0" in chosen.why
    with pytest.raises(Agreed) as agreed:
        compiled_update.choose("xla", mine, World())
    assert isinstance(agreed.value.error, ConfigError)
    assert agreed.value.error.objects == {"key": "train.compile"}
    # And it trains.
    step = stepping(mine.optimizers[0], mine.variables)
    step(*[tf.ones(v.shape) for v in mine.variables])
    np.testing.assert_allclose(mine.variables[1].numpy(), variables("float32")[1].numpy() - 0.1, atol=1e-6)
