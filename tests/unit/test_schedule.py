"""The learning rate over time."""

from __future__ import annotations

import itertools
import math

import pytest

from trainer.config import OptimizerConfig, ScheduleConfig
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
    assert float(rule(20)) == pytest.approx(0.02)
    assert float(rule(1000)) == pytest.approx(0.02)


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


def test_a_schedule_is_made_again_from_its_config() -> None:
    rule = schedule.learning_rate(ScheduleConfig(step_epochs=(1,), name="step"), OPTIMIZER, 8, 5, 4)
    again = schedule.RunSchedule(**rule.get_config())
    assert [float(again(s)) for s in range(20)] == [float(rule(s)) for s in range(20)]
