"""What was decided by a hypergraph: kept in plan.json, read again, and told in the report."""

from __future__ import annotations

import copy
import dataclasses
import json

import pytest
from planned_networks import small
from wording import fails_with

from trainer import config as configuration
from trainer.errors import ConfigError
from trainer.planning.hypergraph import explaining, planning
from trainer.planning.hypergraph.wanted import PartitionGoal
from trainer.planning.placement.plan_file import PlanFile
from trainer.planning.placement.units import place
from trainer.report import reasons
from trainer.strategies import registry
from trainer.strategies.placed.hypergraph_plan import Decided, decided_in

NETWORK = small(samples=4)
FOUND = planning.plan(NETWORK, 2, PartitionGoal("volume", imbalance=0.3))
FILE = PlanFile.of(place(NETWORK, FOUND.best.layouts), name="small", strategy="hypergraph", ranks=2)
TOLD = {
    "asked": {"objective": "volume"},
    "label": FOUND.best.label,
    "by": "reference",
    "bytes": dict(FOUND.best.bytes),
    "step_s": FOUND.best.step_s,
    "imbalance": FOUND.best.imbalance,
    "layer_imbalance": FOUND.best.layer_imbalance,
    "uniform": [
        {"label": "data", "bytes": {"weights": 5}, "step_s": 1.0, "imbalance": 0.0, "layer_imbalance": 0.0}
    ],
    "hypergraphs": [dataclasses.asdict(one) for one in FOUND.hypergraphs],
    "rows": [dataclasses.asdict(one) for one in explaining.rows(NETWORK, FOUND.best.layouts, 2)],
    "file": FILE.model_dump_json(),
}


def test_what_was_decided_is_read_again_from_json():
    found = decided_in(json.loads(json.dumps({"decided": TOLD})))
    assert isinstance(found, Decided)
    assert found.divided.layouts(NETWORK) == FOUND.best.layouts


@pytest.mark.parametrize("damage", [{"file": "{}"}, {"file": 3}, {"more": 1}])
def test_what_is_damaged_is_decided_anew(damage):
    assert decided_in({"decided": {**TOLD, **damage}}) is None
    assert decided_in({}) is None and decided_in(None) is None


def test_each_run_of_layers_is_told_with_what_it_sends_and_the_best_other_cut():
    rows = explaining.rows(NETWORK, FOUND.best.layouts, 2)
    assert sum(row.count for row in rows) == 2
    assert sum(sum(row.bytes.values()) for row in rows) == FOUND.best.volume
    whole = planning.plan(NETWORK, 1, PartitionGoal("volume")).best
    assert [row.cut for row in explaining.rows(NETWORK, whole.layouts, 1)] == ["whole on rank 0"]


def test_the_report_tells_rules_beside_the_plan_and_why_layers_are_cut():
    found = reasons.of({"decided": TOLD})
    assert found is not None and not found.is_measured
    assert [row[0] for row in found.rules] == ["this plan", "data"] and found.rules[1][1] == "5 B"
    assert len(found.rows) == len(TOLD["rows"]) and found.rows_left_out == 0
    assert reasons.of({}) is None
    many = copy.deepcopy(TOLD) | {"rows": TOLD["rows"] * 40}
    assert reasons.of({"decided": many}).rows_left_out == 40 * len(TOLD["rows"]) - reasons.MOST_ROWS


def test_a_replica_of_more_ranks_than_can_train_is_refused_with_a_cure():
    config = configuration.parse("{name: r, data: {shards: s}, train: {strategy: hypergraph}}")
    with fails_with(ConfigError) as caught:
        registry.of(config).plan(None, None, 65)
    assert "train.strategy.replicas" in caught.value.cure
