"""A scheduler of another package, contrib/gridengine, on real daemons: nothing of the product knows it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gridengine_cell
import pytest
from gridengine_cell import Cell
from slurm_jobs import SAVER, wait_until
from tiny_runs import make_shards, result, write_config

from jobs.spec import JobSpec, Resources
from jobs.testbed import Testbed

ROOT = Path(__file__).parents[2]
CALLS = ROOT / "tests" / "cluster" / "programs" / "gridengine_calls.py"
pytestmark = [pytest.mark.slow, pytest.mark.deep]


@pytest.fixture(scope="module")
def cell(cluster_machine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cell]:
    """Two hosts with Grid Engine and without Slurm, on which `cingulum` finds the package."""
    if without := gridengine_cell.missing():
        pytest.skip(f"no {without}: apt-get install gridengine-master gridengine-exec gridengine-client")
    base = tmp_path_factory.mktemp("gridengine")
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    package = base / "package"
    (base / "source").mkdir()
    subprocess.run(["cp", "-r", ROOT / "contrib" / "gridengine", base / "source"], check=True)
    subprocess.run([*install, "--target", package, base / "source" / "gridengine"], check=True)
    shared = [tmp_path_factory.getbasetemp(), ROOT, Path(sys.prefix), Path(sys.base_prefix)]
    testbed = Testbed.up(2, slurm=False, shared=shared, name=f"test-ge-{os.getpid()}", tied=True)
    made = Cell(testbed, base / "root")
    made.environment |= {"PYTHONPATH": str(package), "CINGULUM_HOME": str(base / "home")}
    made.up()
    yield made
    made.run("qconf", "-ke", "all")
    made.run("qconf", "-km")
    testbed.down()


def called(cell: Cell, *words: str) -> Any:
    return json.loads(cell.run(sys.executable, str(CALLS), *words).splitlines()[-1])


def states(cell: Cell, external: str) -> list[str]:
    return [task["state"] for task in called(cell, "states", external)]


def submitted(cell: Cell, *tasks: tuple[str, ...], after: str = "", **more: Any) -> dict[str, Any]:
    given = {"parallel": False, "requeues": 1, **more}
    spec = JobSpec("mine", "command", tasks, "/", **given)
    found: dict[str, Any] = called(cell, "start", spec.to_json(), *([after] if after else []))
    return found


def shell(text: str) -> tuple[str, ...]:
    return ("bash", "-c", text)


def test_a_training_on_two_hosts_saves_when_asked_starts_again_and_ends(cell: Cell, tmp_path: Path) -> None:
    shards = make_shards(tmp_path / "shards")
    config = write_config(tmp_path, shards, "mine", train__epochs=60)
    cingulum = [sys.executable, "-m", "cingulum"]
    line = [*cingulum, "submit", str(config), "--launcher", "gridengine", "--nodes", "2", "--json"]
    (job,) = json.loads(cell.run(*line))["jobs"]
    assert job["id"].isdigit() and job["launcher"] == "gridengine"

    def shown() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(cell.run(*cingulum, "show", job["id"], "--json"))
        return found

    steps = tmp_path / "mine" / "checkpoints"
    wait_until(lambda: list(steps.glob("step-*")), "the first checkpoint")
    cell.run(*cingulum, "requeue", job["id"])
    wait_until(lambda: shown()["state"] == "COMPLETED", "the end", 240)
    assert result(tmp_path / "mine")["world_size"] == 2
    ran = json.loads((tmp_path / "mine" / "run.json").read_text())
    assert len(ran["resumed_from"]) == 1 and len(set(ran["hosts"])) == 2
    log = cell.run(*cingulum, "logs", job["id"])
    assert "asked to save (USR2)" in log and "start 2 on n1 n2" in log


def test_tasks_of_an_array_end_each_in_its_own_way(cell: Cell, tmp_path: Path) -> None:
    fails_once = shell(f"[ -e {tmp_path}/once ] || {{ touch {tmp_path}/once; exit 1; }}")
    waits = shell(f"while [ ! -e {tmp_path}/go ]; do sleep 0.1; done")
    job = submitted(cell, fails_once, shell("exit 3"), shell("exit 2"), waits, shell("true"), requeues=1)
    external = job["external"]
    assert called(cell, "find", job["token"]) == external
    wait_until(lambda: "RUNNING" in states(cell, external)[3:4], "the task that waits")
    called(cell, "cancel", external, "3")
    wanted = ["COMPLETED", "FAILED", "FAILED", "CANCELLED", "COMPLETED"]
    wait_until(lambda: states(cell, external) == wanted, "the ends of all")
    tasks = called(cell, "states", external)
    assert [task["exit_code"] for task in tasks[:3]] == [0, 3, 2]
    assert [task["restarts"] for task in tasks[:3]] == [1, 1, 0]
    folder = Path(job["folder"])
    assert len((folder / "failures-1").read_text().splitlines()) == 2 and not (folder / "failures-2").exists()


def test_what_waits_is_held_let_go_and_lowered_and_a_job_follows_one_that_completed(
    cell: Cell, tmp_path: Path
) -> None:
    hold = shell(f"while [ ! -e {tmp_path}/go ]; do sleep 0.1; done")
    full = [submitted(cell, hold)["external"] for _ in cell.testbed.hosts]
    wait_until(lambda: [*states(cell, full[0]), *states(cell, full[1])] == ["RUNNING"] * 2, "full hosts")
    picture = called(cell, "look")
    assert [(host["cpus"], host["cpus_used"]) for host in picture["hosts"]] == [(1, 1)] * 2
    waiting = submitted(cell, shell("true"))["external"]
    called(cell, "hold", waiting)
    assert called(cell, "is_held", waiting) is True
    called(cell, "release", waiting)
    assert called(cell, "is_held", waiting) is False
    called(cell, "nice", waiting, "", "100")
    good = submitted(cell, shell("true"), after=waiting)["external"]
    failing = submitted(cell, shell("exit 2"))["external"]
    never = submitted(cell, shell("true"), after=failing)["external"]
    assert states(cell, good) == states(cell, never) == ["PENDING"]
    (tmp_path / "go").touch()
    wait_until(lambda: states(cell, good) == ["COMPLETED"], "the job that follows")
    wait_until(lambda: states(cell, never) == ["CANCELLED"], "the one that follows a failure")
    assert states(cell, waiting) == ["COMPLETED"] and states(cell, failing) == ["FAILED"]


def test_a_job_whose_time_is_up_saves_and_goes_on(cell: Cell, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    task = (sys.executable, str(SAVER), str(tmp_path / "run"))
    limits = Resources(nodes=2, minutes=1)
    job = submitted(cell, task, parallel=True, resources=limits, grace_s=50)
    wait_until(lambda: states(cell, job["external"]) == ["COMPLETED"], "its end", 240)
    events = (tmp_path / "run" / "events").read_text().split()
    assert events == ["started", "saved-on-SIGUSR2", "started", "done"]
    assert "asked to save (ALRM)" in (Path(job["folder"]) / "out.log").read_text()
