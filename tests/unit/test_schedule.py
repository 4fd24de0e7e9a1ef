"""The learning rate over time."""

from __future__ import annotations

import itertools
import json
import math

import pytest

from trainer.config import OptimizerConfig, ScheduleConfig
from trainer.config.training import FALLS
from trainer.strategies import schedule

OPTIMIZER = OptimizerConfig(learning_rate=0.1)


def rates(config: ScheduleConfig, *, batch: int = 8, accumulation: int = 1) -> list[float]:
    """The rate of every micro-batch of 4 epochs of 5 updates."""
    rule = schedule.learning_rate(config, OPTIMIZER, batch, 5, 4, accumulation=accumulation)
    return [float(rule(step)) for step in range(20 * accumulation)]


def test_the_warm_up_rises_linearly_to_the_peak() -> None:
    found = rates(ScheduleConfig(name="constant", warmup_epochs=2))
    assert found[:10] == pytest.approx([0.1 * (step + 1) / 10 for step in range(10)])
    assert found[10:] == pytest.approx([0.1] * 10)


def test_a_cosine_falls_from_the_peak_to_its_last_share() -> None:
    found = rates(ScheduleConfig(name="cosine", warmup_epochs=0, final=0.2))
    assert found[0] == pytest.approx(0.1)
    assert found[10] == pytest.approx(0.1 * (0.2 + 0.8 * 0.5 * (1 + math.cos(math.pi / 2))))
    assert all(later < earlier for earlier, later in itertools.pairwise(found))
    rule = schedule.learning_rate(
        ScheduleConfig(name="cosine", warmup_epochs=0, final=0.2), OPTIMIZER, 8, 5, 4
    )
    last = 0.1 * (0.2 + 0.8 * 0.5 * (1 + math.cos(math.pi * 19 / 20)))
    assert [rule.at(19), rule.at(20), rule.at(1000)] == pytest.approx([last] * 3)


def test_steps_fall_at_their_epochs() -> None:
    found = rates(ScheduleConfig(name="step", warmup_epochs=0, step_epochs=(1, 3), step_factor=0.5))
    assert found == pytest.approx([0.1] * 5 + [0.05] * 10 + [0.025] * 5)


@pytest.mark.parametrize(("scale", "factor"), [("none", 1.0), ("linear", 4.0), ("sqrt", 2.0)])
def test_the_rate_is_scaled_to_the_global_batch(scale: str, factor: float) -> None:
    config = ScheduleConfig(name="constant", warmup_epochs=0, scale=scale, reference_batch=8)
    assert rates(config, batch=32)[0] == pytest.approx(0.1 * factor)


def test_micro_batches_of_one_update_share_its_rate() -> None:
    config = ScheduleConfig(name="cosine", warmup_epochs=1)
    once, thrice = rates(config), rates(config, accumulation=3)
    assert thrice == pytest.approx([rate for rate in once for _ in range(3)])


@pytest.mark.parametrize(
    ("changes", "cycles"),
    [
        ([(12, "tail")], ((0, 6),)),
        ([(12, "restart")], ((0, 6), (6, 6))),
        ([(12, "tail"), (20, "restart"), (24, "tail")], ((0, 6), (12, 8))),
        ([(8, "restart"), (8, "restart"), (9, "restart")], ((0, 6), (6, 2), (8, 1))),
    ],
)
def test_what_a_run_is_made_longer_by_follows_from_its_lengths_alone(changes, cycles) -> None:
    found, epochs = schedule.extended((), 0, 6, "tail"), 6
    assert found == ((0, 6),)
    for longer, extend in changes:
        found, epochs = schedule.extended(found, epochs, longer, extend), longer
    assert found == cycles


KINDS = [
    ScheduleConfig(name="cosine", warmup_epochs=1),
    ScheduleConfig(name="cosine", warmup_epochs=0, final=0.3),
    ScheduleConfig(name="cosine", warmup_epochs=9),  # longer than the run
    ScheduleConfig(name="constant", warmup_epochs=1),
    ScheduleConfig(name="step", warmup_epochs=1, step_epochs=(2, 5), step_factor=0.5),
]


@pytest.mark.parametrize("config", KINDS, ids=lambda config: f"{config.name}-{config.warmup_epochs:g}")
def test_a_tail_keeps_every_rate_so_far_and_leaps_nowhere(config: ScheduleConfig) -> None:
    short = schedule.learning_rate(config, OPTIMIZER, 8, 5, 4)
    tail = schedule.learning_rate(config, OPTIMIZER, 8, 5, 9, cycles=[(0, 4)])
    rates = [tail.at(update) for update in range(45)]
    assert rates[:20] == [short.at(update) for update in range(20)]
    if FALLS[config.name].ends:
        assert rates[20:] == [rates[19]] * 25 and rates[19] > 0
    else:  # it depends on no number of epochs, so that a longer run has the rates of one begun so
        whole = schedule.learning_rate(config, OPTIMIZER, 8, 5, 9)
        assert rates == [whole.at(update) for update in range(45)]


@pytest.mark.parametrize("config", KINDS, ids=lambda config: f"{config.name}-{config.warmup_epochs:g}")
def test_a_restart_is_a_run_of_the_added_epochs_after_the_rates_so_far(config: ScheduleConfig) -> None:
    first = schedule.learning_rate(config, OPTIMIZER, 8, 5, 4)
    second = schedule.learning_rate(config, OPTIMIZER, 8, 5, 3)
    both = schedule.learning_rate(config, OPTIMIZER, 8, 5, 7, cycles=[(0, 4), (4, 3)], accumulation=2)
    expected = [first.at(update) for update in range(20)] + [second.at(update) for update in range(15)]
    assert [both.at(update) for update in range(35)] == expected


def test_a_schedule_is_made_again_from_its_config() -> None:
    config = ScheduleConfig(step_epochs=(1,), name="step")
    rule = schedule.learning_rate(config, OPTIMIZER, 8, 5, 4, cycles=[(0, 2), (2, 2)])
    again = schedule.RunSchedule(**json.loads(json.dumps(rule.get_config())))
    assert [float(again(s)) for s in range(20)] == [float(rule(s)) for s in range(20)]


def test_every_kind_that_can_be_named_has_its_rates() -> None:
    """One without would stay constant in silence, and the report would say that it fell."""
    assert schedule._LEFT.keys() == FALLS.keys()
