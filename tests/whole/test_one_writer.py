"""Two starts in one run folder, as real processes: one writes, the other names it and touches nothing."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import one_writer
import pytest
import tiny_runs

FOLDER = Path(__file__).parent.parent
# Waits in the middle of a run until a file is there.
WAITING = FOLDER / "parallel" / "programs" / tiny_runs.PROGRAM
HASTY = FOLDER / "helpers" / "hasty_train.py"
HERE = socket.gethostname()


class Started:
    """A training in a process of its own; `name` is that of its log."""

    def __init__(self, folder: Path, name: str, *words: object, **environment: str) -> None:
        self.log = folder / f"{name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *map(str, words)],
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
                cwd=folder,
            )

    def said(self) -> str:
        return self.log.read_text()

    def ended(self, within_s: float = 120) -> int:
        return self.process.wait(within_s)


Start = Callable[..., Started]


@pytest.fixture
def start(tmp_path) -> Iterator[Start]:
    begun: list[Started] = []

    def starting(*words: object, **environment: str) -> Started:
        begun.append(Started(tmp_path, str(len(begun)), *words, **environment))
        return begun[-1]

    yield starting
    for one in begun:
        one.process.kill()
        one.process.wait(30)


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> Path:
    return tiny_runs.make_shards(tmp_path_factory.mktemp("data") / "shards")


@pytest.fixture(scope="module")
def reference(tmp_path_factory, shards) -> Path:
    """A run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("reference")
    config = tiny_runs.write_config(folder, shards, "run", train__threads=1)
    assert Started(folder, "log", "-m", "cingulum", "train", config).ended() == 0
    return folder / "run"


def wait(condition: Callable[[], object], what: str, within_s: float = 120) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {within_s} s"
        time.sleep(0.05)


def waiting(start: Start, config: Path, *words: str, step: int, **environment: str) -> Started:
    """A training that waits after this step."""
    Path(f"{config}.waiting").unlink(missing_ok=True)
    one = start(WAITING, "wait", 0, step, config, *words, **environment)
    wait(lambda: Path(f"{config}.waiting").exists() or one.process.poll() is not None, "the step")
    assert one.process.poll() is None, one.said()
    return one


def content(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def refused(one: Started, by: Started, number: int) -> bool:
    """Whether it ended with exit code 2 and the name of who writes."""
    named = f"another process writes this run: start {number}, on {HERE} (pid {by.process.pid})."
    return one.ended() == 2 and one.said().count("error: ") == 1 and named in one.said()


@pytest.mark.slow
def test_of_two_by_hand_and_of_two_that_resume_one_trains_and_the_other_names_it(
    tmp_path, shards, reference, start
):
    config = tiny_runs.write_config(tmp_path, shards, "run", train__threads=1)
    both = [start(WAITING, "wait", 0, 8, config) for _ in range(2)]
    wait(lambda: any(one.process.poll() is not None for one in both), "a refusal")
    second, first = sorted(both, key=lambda one: one.process.poll() is None)
    assert refused(second, first, 1), second.said()
    wait(lambda: Path(f"{config}.waiting").exists(), "the step")
    before = content(tmp_path / "run")

    late = [
        start("-m", "cingulum", "train", config),
        start("-m", "cingulum", "train", config, "--resume"),
        start("-m", "cingulum", "evaluate", tmp_path / "run"),
    ]
    for one in late:
        assert refused(one, first, 1), one.said()
    assert "--resume" not in late[2].said() and "wait for it" in late[2].said()
    beat = [name for name in before if name.endswith("heartbeat")]
    after = content(tmp_path / "run")
    assert {**after, beat[0]: b""} == {**before, beat[0]: b""}

    first.process.kill()  # SIGKILL; it is a zombie until we ask for its exit code
    both = [start(WAITING, "wait", 0, 20, config, "--resume") for _ in range(2)]
    wait(lambda: any(one.process.poll() is not None for one in both), "a refusal")
    second, third = sorted(both, key=lambda one: one.process.poll() is None)
    assert refused(second, third, 2), second.said()
    assert "waiting for" not in third.said()  # the dead are seen to be dead
    Path(f"{config}.go").touch()
    assert third.ended() == 0, third.said()
    assert first.ended() == -signal.SIGKILL
    assert one_writer.contradictions(tmp_path / "run") == [] and one_writer.leftovers(tmp_path / "run") == []
    assert [row["start"] for row in tiny_runs.rows(tmp_path / "run")] == [1, 2, 2, 2]
    for key in ("weights_sha256", "best_weights_sha256"):
        assert tiny_runs.result(tmp_path / "run")[key] == tiny_runs.result(reference)[key]


@pytest.mark.slow
def test_a_start_that_stood_still_while_a_later_one_took_over_stops_and_touches_nothing(
    tmp_path, shards, reference, start
):
    config = tiny_runs.write_config(tmp_path, shards, "run", train__threads=1)
    first = waiting(start, config, step=9, SLURM_JOB_ID="47")
    first.process.send_signal(signal.SIGSTOP)
    second = start(HASTY, config, "--resume", SLURM_JOB_ID="47", SLURM_RESTART_COUNT="1")
    assert second.ended() == 0, second.said()
    assert f"waiting for job 47, start 1, on {HERE} (pid {first.process.pid})" in second.said()
    folder = tmp_path / "run"
    before = content(folder)

    Path(f"{config}.go").touch()
    first.process.send_signal(signal.SIGCONT)
    assert first.ended() == 76, first.said()
    named = f"another process writes this run: job 47, start 2, on {HERE} (pid {second.process.pid})."
    assert named in first.said() and "Traceback" not in first.said()
    assert content(folder) == before
    assert one_writer.contradictions(folder) == [] and one_writer.leftovers(folder) == []
    for key in ("weights_sha256", "best_weights_sha256"):
        assert tiny_runs.result(folder)[key] == tiny_runs.result(reference)[key]

    orphan = start("-m", "cingulum", "train", config, "--resume", SLURM_JOB_ID="47")
    assert orphan.ended() == 0 and "finished already" in orphan.said()


@pytest.mark.slow
@pytest.mark.deep
def test_a_run_folder_that_is_renamed_ends_its_training_and_goes_on_where_it_lies(
    tmp_path, shards, reference, start
):
    config = tiny_runs.write_config(tmp_path, shards, "run", train__threads=1)
    first = waiting(start, config, step=9)
    (tmp_path / "run").rename(tmp_path / "moved")
    Path(f"{config}.go").touch()
    assert first.ended() == 76, first.said()
    assert "was renamed or removed" in first.said() and "Traceback" not in first.said()
    assert not (tmp_path / "run").exists()

    again = start("-m", "cingulum", "train", tmp_path / "moved" / "config.yaml", "name=moved", "--resume")
    assert again.ended() == 0, again.said()
    assert one_writer.contradictions(tmp_path / "moved") == []
    assert one_writer.leftovers(tmp_path / "moved") == []
    assert (
        tiny_runs.result(tmp_path / "moved")["weights_sha256"]
        == tiny_runs.result(reference)["weights_sha256"]
    )


def test_what_contradicts_one_writer_is_found(tmp_path, reference):
    folder = shutil.copytree(reference, tmp_path / "run")
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join([*lines[:2], lines[1], *lines[2:]]))
    assert one_writer.contradictions(folder) == [
        "metrics.jsonl: epoch 2 of start 1 follows epoch 2 of start 1"
    ]

    (folder / "metrics.jsonl").write_text("".join(lines))
    assert one_writer.contradictions(folder) == []
    claims = folder / ".writers"
    (claims / "00000002.json").write_text(
        (claims / "00000001.json").read_text().replace('"start": 1', '"start": 2')
    )
    reads = claims / "00000002.reads"
    reads.touch()
    assert one_writer.contradictions(folder) == []
    moved, began = folder / "step", reads.stat().st_mtime_ns
    newest = folder / "checkpoints" / "step-00000024"
    newest.rename(moved)
    wait(lambda: moved.touch() or moved.stat().st_ctime_ns > began, "a tick of the file system's clock")
    moved.rename(newest)
    assert one_writer.contradictions(folder) == [
        "step-00000024: put by start 1 after start 2 had begun to read"
    ]
