"""A fault of the data while ranks train on it is told once, by name, or passes; no weight changes."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

import pytest
import tiny_runs

from trainer.data.shards.shards import ShardSet
from trainer.run_folder import checkpoint

PROGRAM = "faulty_data.py"
# From the fault to the end of all ranks: until the shard's turn comes, pauses between tries, and ending.
BOUND_S = 30
SHARD = "shard-00003.h5"
HEAD = rf"(\[rank \d @ [^]]+\] )?error: (\[rank \d @ [^]]+\] )?\S*{SHARD}, byte \d+: "
ANY_HEAD = HEAD.replace(SHARD, r"shard-0000\d.h5")
VOLUME = r"volume \d+ \(subject sub-0\d\d\)"

# What is done, by which rank, and what is said of it by the one that reads.
FAULTS = {
    "cut": (1, rf"{HEAD}{VOLUME} is damaged: the file was truncated, from \d+ bytes to \d+"),
    "remove": (0, rf"{HEAD}{VOLUME} is damaged: the file was removed"),
    "replace": (1, rf"{HEAD}{VOLUME} is damaged: the file was replaced by another one"),
    "broken": (1, rf"{ANY_HEAD}{VOLUME} is damaged: it cannot be read \(Input/output error\)"),
    "hanging": (0, rf"{ANY_HEAD}reading {VOLUME} \(\d+ bytes\) has taken more than 1.5 s"),
    "none": (0, rf"{HEAD}{VOLUME} is damaged: its checksum does not match"),
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


# The gate has one that is tried again and one that is not.
@pytest.mark.parametrize("faults", [("broken", "none"), tuple(FAULTS)])
def test_what_stays_ends_all_ranks_until_it_is_mended_and_what_passes_changes_no_bit(
    tmp_path, launch, faults
):
    """One run is hit by fault after fault, goes on after each, and ends as the run that met none."""
    shards, whole = tiny_runs.make_shards(tmp_path / "shards"), tmp_path / "whole"
    shutil.copytree(shards, whole)
    changes = {"checkpoint__every_steps": 1}
    untouched = tiny_runs.write_config(tmp_path, shards, "untouched", **changes)
    outcome = launch(2, PROGRAM, "none", 0, 0, untouched, shards / SHARD)
    assert outcome.exit_code == 0, outcome.err

    folder = tmp_path / "run"
    for fault in faults:
        rank, message = FAULTS[fault]
        if fault == "none":
            flip_a_byte_of_each_volume(shards)
        # Less than the pauses between tries, which are no matter where a read hangs.
        changes["data__read_timeout"] = 1.5 if fault == "hanging" else 30
        config = tiny_runs.write_config(tmp_path, shards, "run", **changes)
        before = max(tiny_runs.steps(folder), default=0)
        outcome = launch(2, PROGRAM, fault, rank, before + 1, config, shards / SHARD, "--resume")
        print(f"{fault}: ended after {outcome.seconds:.1f} s")
        assert outcome.exit_code == 2, f"{fault}: {outcome.err}"
        if fault != "none":
            assert time.time() - (tmp_path / "struck").stat().st_mtime < BOUND_S
        told = [line for line in outcome.err.splitlines() if "error: " in line]
        assert len(told) == 1 and re.match(message, told[0]), outcome.err
        assert "Traceback" not in outcome.err
        newest = max(tiny_runs.steps(folder))
        assert newest > before or fault == "none", f"{fault} did not strike at step {before + 1}"
        found = checkpoint.find(folder / "checkpoints")
        assert found == checkpoint.NewestCheckpoint(checkpoint.path_of(folder / "checkpoints", newest))
        for path in whole.iterdir():
            shutil.copyfile(path, shards / path.name)

    outcome = launch(2, PROGRAM, "passing", 1, 0, config, shards / SHARD, "--resume")
    assert outcome.exit_code == 0, outcome.err
    assert len(re.findall(r"warning: .*: reading at byte \d+ failed", outcome.err)) == 1
    result, expected = tiny_runs.result(folder), tiny_runs.result(tmp_path / "untouched")
    assert result["weights_sha256"] == expected["weights_sha256"]
    assert result["best_weights_sha256"] == expected["best_weights_sha256"]


def flip_a_byte_of_each_volume(shards: Path) -> None:
    for row, volume in enumerate(ShardSet.open(shards).volumes):
        if volume.shard == SHARD:
            tiny_runs.flip_a_byte(shards, row=row)
