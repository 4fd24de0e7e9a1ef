"""A network and volumes that do not fit into the memory of one rank train on four that get as much each."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_runs

pytestmark = pytest.mark.slow

MIB = 2**20
# Of address space, once everything is loaded: threads, graphs, messages, and a rank's part of the network.
LIMIT = 1500 * MIB
# Otherwise each thread takes 64 MiB of address space to allocate from.
ENVIRONMENT = {"MALLOC_ARENA_MAX": "1"}
CHANGES = {
    "train__strategy": {"name": "spatial"},
    "train__global_batch": 8,
    "train__epochs": 1,
    "train__optimizer": {"name": "sgd", "learning_rate": 0.01},
    "model": {"name": "vgg", "width": 8},
    "data__augment": {},
}


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> Path:
    return tiny_runs.make_shards(tmp_path_factory.mktemp("data") / "shards", subjects=16, size=128)


def limited(launch, folder, shards, ranks):
    config = tiny_runs.write_config(folder, shards, "limited", **CHANGES)
    return launch(ranks, "limited_train.py", LIMIT, config, environment=ENVIRONMENT)


def test_one_rank_is_refused_before_the_first_step_and_told_what_it_needs(tmp_path, shards, launch):
    outcome = limited(launch, tmp_path, shards, 1)
    assert outcome.exit_code == 2 and "Traceback" not in outcome.err
    assert "Rank 0 of 1 needs 1.6 GiB at least" in outcome.err
    assert "Divide the network over more ranks" in outcome.err
    assert not (tmp_path / "limited").exists()


def test_four_ranks_train_within_the_same_limit(tmp_path, shards, launch):
    outcome = limited(launch, tmp_path, shards, 4)
    assert outcome.exit_code == 0, outcome.err
    assert tiny_runs.result(tmp_path / "limited")["steps"] == 2
