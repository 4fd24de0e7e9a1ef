"""`cingulum profile` under mpirun: every rank's device, and links both ways."""

from __future__ import annotations

import json

import pytest
from conftest import Launch
from tiny_runs import make_shards, write_config


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("profile")
    return write_config(folder, make_shards(folder / "shards"), "run")


def test_two_ranks_have_two_devices_and_links_both_ways(launch: Launch, config, tmp_path) -> None:
    out = tmp_path / "profile.json"
    done = launch(2, "command.py", "profile", config, "--json", "--out", out)
    assert done.exit_code == 0, done.err
    profile = json.loads(done.out)  # printed once
    assert out.read_text() == done.out
    assert profile["batch"] == 2, "two ranks share a batch of four"
    assert [one["threads"] > 0 for one in profile["devices"]] == [True, True]
    assert len({one["host"] for one in profile["devices"]}) == 1
    for one in profile["operations"]:
        assert all((seconds > 0) == (one["kind"] != "input") for seconds in one["forward_s"])
    conv = next(one for one in profile["operations"] if one["name"] == "stage1_conv")
    assert conv["forward_s"][0] != conv["forward_s"][1], "each rank measures for itself"
    assert all(seconds > 0 for seconds in profile["update"]["seconds"])
    (here, there), (back, same) = profile["links"]
    assert here is None and same is None
    for link in (there, back):
        assert 0 <= link["latency_s"] < 0.1 and 1e6 < link["bytes_per_second"] < 1e12
    assert there != back
    assert all(1e-6 < seconds < 0.1 for seconds in profile["handling"]["message_s"])
    assert all(0 <= seconds < 1e-6 for seconds in profile["handling"]["byte_s"])
    assert len(profile["task_s"]) == 2 and all(0 <= seconds < 1e-3 for seconds in profile["task_s"])


def test_an_error_is_told_once(launch: Launch, config, tmp_path) -> None:
    done = launch(2, "command.py", "profile", config, "--out", tmp_path / "nowhere" / "profile.json")
    assert done.exit_code == 2
    assert done.err.count("error: ") == 1 and "there is no such folder" in done.err
