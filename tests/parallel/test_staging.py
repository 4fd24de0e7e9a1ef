"""Ranks of a host share one copy of the shards, learn the same from it, and end together where it fails."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import pytest
import tiny_runs
from tiny_runs import PROGRAM, result

from trainer.data.loading.node_scratch import ScratchFolder
from trainer.data.shards.shards import ShardSet

COUNTED = "cached_train.py"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> Path:
    return tiny_runs.make_shards(tmp_path_factory.mktemp("data") / "shards")


@pytest.fixture(scope="module")
def plain(tmp_path_factory, shards, launch) -> dict:
    """result.json of two ranks without a cache."""
    folder = tmp_path_factory.mktemp("plain")
    outcome = launch(2, PROGRAM, "none", 0, 0, tiny_runs.write_config(folder, shards, "run"))
    assert outcome.exit_code == 0, outcome.err
    return result(folder / "run")


def size_of(shards: Path) -> int:
    return sum(shard.nbytes for shard in ShardSet.open(shards).index.shards)


def facts(folder: Path) -> dict:
    return json.loads((folder / "run.json").read_text())["cache"]


def counts(folder: Path) -> list[dict]:
    return [json.loads((folder / f"counts-{rank}.json").read_text()) for rank in (0, 1)]


def test_two_ranks_share_one_copy_and_learn_the_same(tmp_path, shards, plain, launch):
    config = tiny_runs.write_config(tmp_path, shards, "run", data__cache="node-local")
    (tmp_path / "scratch").mkdir()
    outcome = launch(2, COUNTED, tmp_path / "counts", shards, tmp_path / "scratch", config)
    assert outcome.exit_code == 0, outcome.err
    assert sum(rank["copied"] for rank in counts(tmp_path)) == size_of(shards)
    assert [rank["read"] for rank in counts(tmp_path)] == [0, 0]
    assert result(tmp_path / "run")["weights_sha256"] == plain["weights_sha256"]
    assert result(tmp_path / "run")["best_weights_sha256"] == plain["best_weights_sha256"]
    assert facts(tmp_path / "run")["bytes_copied"] == size_of(shards)
    assert "named by $CINGULUM_SCRATCH" in outcome.err
    assert list(ScratchFolder.find(tmp_path / "scratch").ours.iterdir()) == []


def test_ranks_of_two_hosts_have_a_copy_each(tmp_path, shards, plain, launch):
    """Hosts as far as a file system goes: each rank has a scratch of its own."""
    config = tiny_runs.write_config(tmp_path, shards, "run", data__cache="node-local", train__epochs=1)
    for rank in (0, 1):
        (tmp_path / f"scratch-{rank}").mkdir()
    outcome = launch(2, COUNTED, tmp_path / "counts", shards, tmp_path / "scratch-{rank}", config)
    assert outcome.exit_code == 0, outcome.err
    assert [rank["copied"] for rank in counts(tmp_path)] == [size_of(shards)] * 2
    assert facts(tmp_path / "run")["bytes_copied"] == 2 * size_of(shards)


def test_a_host_without_scratch_ends_both_ranks_and_is_named(tmp_path, shards, launch):
    config = tiny_runs.write_config(tmp_path, shards, "run", data__cache="node-local")
    (tmp_path / "scratch-0").mkdir()
    outcome = launch(2, COUNTED, tmp_path / "counts", shards, tmp_path / "scratch-{rank}", config)
    assert outcome.exit_code == 2
    assert outcome.err.count("error: ") == 1
    assert (
        f"error: [rank 1 @ {socket.gethostname()}] {tmp_path}/scratch-1: cannot be used as scratch"
        in outcome.err
    )
    assert list(ScratchFolder.find(tmp_path / "scratch-0").ours.iterdir()) == []
    assert not (tmp_path / "run").exists()


def test_a_damaged_source_ends_both_ranks_and_is_named(tmp_path, launch):
    shards = tiny_runs.make_shards(tmp_path / "shards")
    tiny_runs.flip_a_byte(shards, row=9)
    (tmp_path / "scratch").mkdir()
    config = tiny_runs.write_config(
        tmp_path, shards, "run", data__cache="node-local", data__scratch=str(tmp_path / "scratch")
    )
    outcome = launch(2, PROGRAM, "none", 0, 0, config)
    assert outcome.exit_code == 2
    assert outcome.err.count("error: ") == 1
    assert f"{shards}/shard-00002.h5: is damaged: its checksum does not match" in outcome.err
    assert "Traceback" not in outcome.err
    assert list(ScratchFolder.find(tmp_path / "scratch").ours.iterdir()) == []


def wait_for_the_dead(place: ScratchFolder) -> None:
    """mpirun may be gone a moment before the other rank, which it has killed, is."""
    until = time.monotonic() + 10
    while any(copy.in_use for copy in place.contents()) and time.monotonic() < until:
        time.sleep(0.05)


def test_a_killed_run_goes_on_with_the_copy_it_left_and_without_it(tmp_path, shards, plain, launch):
    (tmp_path / "scratch").mkdir()
    place = ScratchFolder.find(tmp_path / "scratch")
    changes = {"data__cache": "node-local", "data__scratch": str(place.folder)}
    config = tiny_runs.write_config(tmp_path, shards, "run", **changes)
    assert launch(2, PROGRAM, "kill", 1, 5, config).exit_code == 137
    wait_for_the_dead(place)
    (left,) = place.contents()
    assert (left.whole, left.in_use) == (True, False)
    assert launch(2, PROGRAM, "kill", 1, 11, config, "--resume").exit_code == 137
    wait_for_the_dead(place)
    assert [copy.removed for copy in place.contents(clean=True)] == [True]
    outcome = launch(2, PROGRAM, "none", 0, 0, config, "--resume")
    assert outcome.exit_code == 0, outcome.err
    assert facts(tmp_path / "run")["bytes_copied"] == size_of(shards)
    assert result(tmp_path / "run")["weights_sha256"] == plain["weights_sha256"]


def test_two_ranks_that_keep_volumes_in_memory_learn_the_same(tmp_path, shards, plain, launch):
    half = f"{32 * 16**3 * 2 // 2} B"  # of 32 volumes of 16^3 float16, for both ranks together
    config = tiny_runs.write_config(tmp_path, shards, "run", data__cache="memory", data__cache_bytes=half)
    outcome = launch(2, PROGRAM, "none", 0, 0, config)
    assert outcome.exit_code == 0, outcome.err
    assert result(tmp_path / "run")["weights_sha256"] == plain["weights_sha256"]
    assert result(tmp_path / "run")["best_weights_sha256"] == plain["best_weights_sha256"]
    told = facts(tmp_path / "run")
    assert told["hits"] and told["kept_bytes"] <= told["budget_bytes"] == 32 * 16**3
