"""A full disk: the message names the file, what it needs and what is free; room and --resume mend it."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny_runs

from cingulum.cli import app
from trainer.errors import CingulumError
from trainer.run_folder import checkpoint
from trainer.telemetry import scalars

SIZE = r"[0-9.]+ ([KM]i)?B"


@pytest.fixture
def disk(tmp_path) -> Iterator[Path]:
    """An empty disk of its own, to be made as large as a test wants it: `resize`."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a disk of a given size needs root, and a container that may mount")
    yield folder
    # TensorFlow keeps its file of events open as long as the process lives.
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def resize(disk: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)


def test_a_training_on_a_full_disk_names_the_file_and_goes_on_when_there_is_room(disk, tmp_path, capsys):
    shards = tiny_runs.make_shards(tmp_path / "shards")
    changes = {"train__deterministic": False, "train__epochs": 1, "checkpoint__every_steps": 3}
    config = tiny_runs.write_config(tmp_path, shards, "run", **changes)
    steps = [
        (
            "16k",
            rf"disk/run/(run|plan)\.json: no space is left on its disk: {SIZE} are needed, {SIZE} are free",
        ),
        (
            "232k",
            r"disk/run/checkpoints: the checkpoint of step 6 could not be written "
            rf"\(no space is left on its disk: {SIZE} are needed, {SIZE} are free\)",
        ),
    ]
    for size, words in steps:
        resize(disk, size)
        assert app.run(["train", str(config), f"runs={disk}", "--resume"]) == 1
        said = capsys.readouterr().err
        assert re.search(words, said), f"{size}: {said}"
        assert "Free space" in said and "--resume" in said and "Traceback" not in said
        assert not list((disk / "run").rglob(".*.partial")) and not list((disk / "run").rglob("*.partial"))
    # With what was computed on the disk the run is finished; only its pictures have no room.
    resize(disk, "512k")
    assert app.run(["train", str(config), f"runs={disk}", "--resume"]) == 0
    said = capsys.readouterr().err
    lacks = (
        rf"report.html could not be made \(.*disk/run/[a-z./-]+: no space is left on its disk: .*{SIZE} are"
    )
    assert re.search(lacks, said) and f"cingulum report {disk / 'run'}" in said and "Traceback" not in said
    assert tiny_runs.result(disk / "run")["steps"] == 6
    assert (
        checkpoint.find(disk / "run" / "checkpoints").path == disk / "run" / "checkpoints" / "step-00000006"
    )

    resize(disk, "8m")
    assert app.run(["train", str(config), f"runs={disk}", "--resume"]) == 0
    assert (disk / "run" / "report.html").is_file() and tiny_runs.result(disk / "run")["steps"] == 6


def test_events_that_have_no_room_are_missing_and_end_nothing(disk, capfd):
    (disk / "events").mkdir()
    resize(disk, "8k")
    with contextlib.suppress(OSError):
        (disk / "full").write_bytes(bytes(2**20))
    written = scalars.tensorboard(disk / "events", start=1)
    written({"step": 1, "loss": 0.5}, [])

    resize(disk, "8m")
    written({"step": 2, "loss": 0.5}, [])
    assert any(file.stat().st_size for file in (disk / "events").glob("*.start-1"))
    assert "events could not be written" in capfd.readouterr().err


def test_a_shard_on_a_full_disk_is_named_with_what_is_free(disk):
    with pytest.raises(CingulumError) as told:
        tiny_runs.make_shards(disk / "shards")
    assert re.search(rf"disk/shards/.*: the disk is full\..* {SIZE} are free\.", told.value.message)
