"""Real runs, slowed on purpose: `cingulum diagnose` names what was done to them, and leaves good ones alone.

Of the link and the server: tests/cluster/test_diagnose_hosts.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_runs

from trainer.telemetry import evidence
from trainer.telemetry.verdict import WORTH

PROGRAM = "slowed_train.py"
ALIKE = {
    "data__augment": {},
    "model__options": {},
    "train__deterministic": False,
    "train__epochs": 2,
    "checkpoint__every_steps": None,
}
# Enough to compute in a step of 8 volumes that neither reading nor messages on this host matter.
BUSY = {
    **ALIKE,
    "train__global_batch": 8,
    "train__sync_batch_norm": False,
    "train__optimizer": {"name": "sgd"},
    "model__width": 32,
}
# One small volume per step.
TINY_BATCH = {**ALIKE, "train__global_batch": 1}

# Name of the run: how it is slowed, and its strategy.
DIVIDED = {
    "divided": ("none", {"name": "spatial"}),
    "divided-rank": ("rank", {"name": "spatial"}),
    "divided-reading": ("reading", {"name": "spatial"}),
    "divided-unequally": ("none", {"name": "filters", "shares": [1, 0.1]}),
}


@pytest.fixture(scope="module")
def runs(launch, tmp_path_factory) -> Path:
    """Run folders, each named after what slowed it."""
    folder = tmp_path_factory.mktemp("runs")
    shards = tiny_runs.make_shards(folder / "shards", size=48)
    small = tiny_runs.make_shards(folder / "small")
    words: list[object] = []
    for how in ("two", "rank", "reading"):
        config = tiny_runs.write_config(folder, shards, how, **BUSY)
        words += ["none" if how == "two" else how, config]
    for name, (how, strategy) in DIVIDED.items():
        config = tiny_runs.write_config(folder, shards, name, **BUSY, train__strategy=strategy)
        words += [how, config]
    several = launch(2, PROGRAM, *words, timeout=600)
    assert several.exit_code == 0, several.err
    one = tiny_runs.write_config(folder, shards, "one", **BUSY)
    tiny = tiny_runs.write_config(folder, small, "tiny-batch", **TINY_BATCH)
    alone = launch(0, PROGRAM, "none", one, "none", tiny)
    assert alone.exit_code == 0, alone.err
    (folder / "said").write_text(several.out + alone.out)
    return folder


def test_a_run_that_goes_well_is_not_called_slow(runs):
    found = evidence.diagnose(runs / "one")
    assert found.is_well, found


def test_two_ranks_that_go_well_wait_neither_for_input_nor_for_the_network(runs):
    """A third program on two cores makes one of them late: that would be true, and is not asked about."""
    gains = evidence.diagnose(runs / "two").gains
    assert max(gains["network"], gains["input"]) < WORTH, gains


def test_a_rank_under_a_quota_is_named(runs):
    found = evidence.diagnose(runs / "rank")
    assert (found.bound, found.cause) == ("straggler", None), found
    assert "rank 1 @ " in found.summary and "rank 0" not in found.summary
    assert found.gain_at_most > 0.3


def test_a_slow_disk_is_the_input_although_one_rank_alone_reads_slowly(runs):
    found = evidence.diagnose(runs / "reading")
    assert found.bound == "input", found
    assert any("rank 1 @ " in sentence and "waits longest" in sentence for sentence in found.evidence)
    assert any("data.reader_threads" in setting.words for setting in found.settings)


def test_a_tiny_batch_shows_in_what_no_batch_lengthens(runs):
    found = evidence.diagnose(runs / "tiny-batch")
    assert (found.bound, found.cause) == ("compute", "small steps"), found
    assert found.settings[0].words == "train.global_batch=4"


def test_a_training_ends_with_its_verdict(runs):
    said = (runs / "said").read_text()
    assert "compute-bound, as it should be" in said
    assert "straggler-bound: " in said and "(cingulum diagnose " in said


def test_a_divided_network_waits_for_the_rank_under_a_quota(runs):
    found = evidence.diagnose(runs / "divided-rank")
    assert (found.bound, found.cause) == ("straggler", None), found
    assert "rank 1 @ " in found.summary and found.gain_at_most > 0.3


def test_a_divided_network_waits_for_the_rank_that_has_most_of_it(runs):
    found = evidence.diagnose(runs / "divided-unequally")
    assert (found.bound, found.cause) == ("straggler", "uneven"), found
    assert "rank 0 @ " in found.summary and "has more of the network" in found.summary
    assert found.settings[0].words == "train.strategy.balance=speed train.strategy.shares=null"


def test_a_divided_network_whose_volumes_come_late_waits_for_its_input(runs):
    assert evidence.diagnose(runs / "divided-reading").bound == "input"


def test_a_network_divided_equally_waits_neither_for_input_nor_for_a_rank(runs):
    gains = evidence.diagnose(runs / "divided").gains
    assert max(gains["straggler"], gains["input"]) < WORTH, gains
