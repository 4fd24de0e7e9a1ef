"""What plan.json has of a division into stages, as a run that goes on reads it."""

from __future__ import annotations

import dataclasses
import json

import pytest
from planned_networks import small

from trainer.strategies.placed.hybrid_plan import Division, division_in
from trainer.telemetry import divided
from trainer.telemetry.facts import RunFacts

NETWORK = small()
KNOWN = Division(
    "gabra", "1f1b", 4, ("conv", "mean"), (1, 0), "profile", 0.5, 0.1, True, ((0, "f", 0, 0.0, 1.0),)
)


def told(**changes):
    return {"division": json.loads(json.dumps(dataclasses.asdict(KNOWN))) | changes}


def test_a_division_is_read_back_and_fits_its_network():
    found = division_in(told())
    assert found is not None and (found.partitions, found.ranks, found.gap) == (("conv", "mean"), (1, 0), 0.1)
    assert found.parts(NETWORK) == [("conv", "relu"), ("mean", "loss")]
    assert found.fits_network(NETWORK, 2) and not found.fits_network(NETWORK, 1)


def test_a_division_of_before_anything_was_computed_again_is_read():
    plan = told()
    del plan["division"]["recompute"]
    assert division_in(plan) == division_in(told())


@pytest.mark.parametrize(
    "changes",
    [
        {"ranks": [0]},
        {"ranks": ["0", "1"]},
        {"ranks": [0, -1]},
        {"partitions": []},
        {"more": 1},
        {"ranks": None},
    ],
)
def test_a_damaged_division_is_none(changes):
    assert division_in(told(**changes)) is None
    assert division_in({"division": "x"}) is None and division_in(None) is None


@pytest.mark.parametrize(
    "partitions", [["conv", "none"], ["relu", "mean"], ["mean", "conv"], ["conv", "conv"]]
)
def test_a_division_of_another_network_does_not_fit(partitions):
    found = division_in(told(partitions=partitions))
    assert found is not None and not found.fits_network(NETWORK, 2)


def proposed(**strategy):
    config = {"train": {"global_batch": 16, "strategy": {"name": "hybrid", **strategy}}}
    facts = RunFacts(strategy="hybrid", config=config)
    return [change for change, _ in divided.uneven(facts, 4)]


def test_more_micro_batches_and_replicas_are_proposed_where_samples_can_be_divided_so():
    assert proposed(micro_batches=4) == [{"train.strategy.micro_batches": 8}, {"train.strategy.replicas": 2}]
    assert proposed(micro_batches=8, replicas=2) == []
    assert proposed(micro_batches=16) == []
