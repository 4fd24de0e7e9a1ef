"""Devices that change while a run trains: who may ask for it, what plan.json keeps, what a look costs."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from wording import fails_with

from trainer import config
from trainer.errors import ConfigError
from trainer.planning.placement.balance import RankSpeeds
from trainer.planning.profile import Device
from trainer.ranks.world import World
from trainer.strategies.placed import calibration, filters_plan
from trainer.strategies.placed.filters_plan import Recalibration, recalibrated_in
from trainer.strategies.placed.waiting import Waiting

HEAD = "name: one\ndata: {shards: s}\n"
FILTERS = ["train.strategy=filters", "train.strategy.recalibrate_every=5"]


def measured(*seconds: float) -> RankSpeeds:
    devices = tuple(Device(host=f"n{i}", name="CPU", threads=1) for i in range(len(seconds)))
    return RankSpeeds(devices=devices, seconds_per_gflop=seconds, links=(None,) * len(seconds))


DEVICES = measured(1.0, 1.0).devices


def told(step: Any, *seconds: float, **changes: Any) -> dict[str, Any]:
    balance = {"by": "speed", "measured": json.loads(measured(*seconds).model_dump_json())}
    return {"step": step, "way": "1:4", "balance": balance, **changes}


@pytest.mark.parametrize("by", ["speed", "bandwidth"])
def test_it_goes_with_shares_that_are_measured(by):
    section = config.parse(HEAD, [*FILTERS, f"train.strategy.balance={by}"]).train.strategy
    assert section.recalibrate_every == 5


@pytest.mark.parametrize(
    "given, said",
    [
        ([], "recalibrate_every=5 measures devices again, and balance=equal divides"),
        (["train.strategy.shares=[1, 1]"], "recalibrate_every=5 measures devices again, and shares divides"),
        (["train.strategy.plan=p.json"], "recalibrate_every=5 measures devices again, and plan divides"),
        (["train.strategy.recalibrate_every=0"], "recalibrate_every=0: must be at least 1"),
    ],
)
def test_it_is_refused_by_name_where_nothing_is_measured(given, said):
    with fails_with(ConfigError) as refused:
        config.parse(HEAD, [*FILTERS, *given])
    assert said in str(refused.value)


def test_plan_json_gives_back_every_division_with_its_step():
    plan = {"recalibrated": [told(0, 1.0, 4.0), told(8, 1.0, 1.0)]}
    found = recalibrated_in(json.loads(json.dumps(plan)), DEVICES)
    assert found == (
        Recalibration(0, measured(1.0, 4.0), plan["recalibrated"][0]),
        Recalibration(8, measured(1.0, 1.0), plan["recalibrated"][1]),
    )


@pytest.mark.parametrize(
    "wrong",
    [
        "no object",
        told("8", 1.0, 1.0),
        told(0, 1.0, 1.0),
        told(8, 1.0),
        told(8, 1.0, 1.0, way=None),
        told(8, 1.0, 1.0, balance={"by": "speed"}),
    ],
)
def test_of_a_plan_json_that_was_changed_by_hand_counts_what_comes_before_that(wrong):
    plan = {"recalibrated": [told(0, 1.0, 4.0), wrong, told(12, 1.0, 2.0)]}
    assert [one.step for one in recalibrated_in(plan, DEVICES)] == [0]
    assert recalibrated_in({"recalibrated": wrong}, DEVICES) == ()
    assert recalibrated_in({"recalibrated": [told(4, 1.0, 4.0)]}, DEVICES) == (), "the first one is missing"


def test_a_look_measures_nothing_where_no_rank_waits_enough_to_gain_by_another_division(monkeypatch):
    monkeypatch.setattr(calibration, "seconds_per_gflop", lambda world, sample: (2.0,))

    def look(waited: float | None) -> Any:
        waiting = SimpleNamespace(share=lambda: waited, traced_s=3.0)
        learner: Any = SimpleNamespace(world=World(), waiting=waiting)
        return filters_plan.look(learner, measured(1.0), calibration.PUBLISHED)

    assert look(0.05) is None
    assert look(0.3) == look(None) == (measured(2.0), 3.0)


def test_waiting_is_counted_of_all_steps_since_the_last_look_but_those_that_were_traced(monkeypatch):
    clock = SimpleNamespace(now=100.0)
    now = SimpleNamespace(monotonic=lambda: clock.now, time=lambda: clock.now)
    monkeypatch.setattr("trainer.strategies.placed.waiting.time", now)
    waiting = Waiting()
    with waiting.step(), waiting.tracing():
        clock.now += 50.0
    waiting.arrived(rows((100.0, 40.0)))
    assert waiting.share() is None and waiting.traced_s == 50.0
    for _ in range(2):
        began = clock.now
        with waiting.step():
            clock.now += 10.0
        # One that came in an evaluation before, two messages of one call, and one of the next.
        waiting.arrived(rows((began - 1.0, 0.5), (began, 1.0), (began, 2.0), (began + 5.0, 1.0)))
    assert waiting.share() == pytest.approx(0.3)
    assert waiting.share() is None


def rows(*calls: tuple[float, float]) -> Any:
    """Arrivals: when each was asked for, and how long it took."""
    return np.array([(asked, asked + took, 1, 8) for asked, took in calls])
