"""kill -9 in the middle of what users do with jobs, on a real Slurm: nothing twice, nothing lost.

Slurm's own scancel and scontrol are called by scripts that wait before or after, so that the service, its
client or its database can be killed while all of cancel, requeue, hold, release and nice are under way.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2
import postgresql
import pytest
import sqlalchemy as sql
from served_on_slurm import ROOT, Served
from slurm_jobs import slurm, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# Notes that it was called; waits, if told to, before or after it calls the real one, or never calls it.
WRAPPER = """#!/bin/sh
at=${0%/*}
echo "${0##*/} $*" >> "$at/called"
while [ -e "$at/before" ]; do sleep 0.05; done
code=1
[ -e "$at/never" ] || { REAL "$@"; code=$?; }
while [ -e "$at/after" ]; do sleep 0.05; done
echo "${0##*/} $*" >> "$at/ended"
exit $code
"""
# Of each job, by its name: what is asked of it.
ORDERS = {
    "to hold": "hold",
    "to release": "release",
    "to put last": "nice",
    "to cancel": "cancel",
    "to end": "cancel",
    "runs": "requeue",
    "failed": "requeue",
}
# State, whether it is held, and Nice, in the beginning and after the order.
BEFORE = {
    "to hold": ("PENDING", False, 0),
    "to release": ("PENDING", True, 0),
    "to put last": ("PENDING", False, 0),
    "to cancel": ("PENDING", False, 0),
    "to end": ("RUNNING", False, 0),
    "runs": ("RUNNING", False, 0),
    "failed": ("FAILED", False, 0),
}
OBEYED = {
    "to hold": ("PENDING", True, 0),
    "to release": ("PENDING", False, 0),
    "to put last": ("PENDING", False, 1000),
    "to cancel": ("CANCELLED", False, 0),
    "to end": ("CANCELLED", False, 0),
    "runs": ("PENDING", False, 0),
    "failed": ("PENDING", False, 0),
}


class Acted(Served):
    """A service whose calls of Slurm can be kept waiting."""

    def prepare(self, store: str | Path) -> None:
        """Put the scripts on its path."""
        self.bin = self.folder / "bin"
        self.bin.mkdir()
        for name in ("scancel", "scontrol"):
            path = self.bin / name
            path.write_text(WRAPPER.replace("REAL", shutil.which(name) or name))
            path.chmod(0o755)
        self.store = store
        self.more = {"PATH": f"{self.bin}:{os.environ['PATH']}", "CINGULUM_STORE": str(store)}

    def noted(self, name: str) -> list[str]:
        """Lines that the scripts wrote: those `called`, and those that `ended`."""
        path = self.bin / name
        return sorted(path.read_text().splitlines()) if path.exists() else []

    def submit(self, folder: str) -> dict[str, str]:
        """Submit the jobs, and wait until they are as in BEFORE, for Slurm and for the service."""
        helpers = ROOT / "tests" / "helpers"
        line = self.argv(
            helpers / "jobs_to_act_on.py",
            self.folder / folder,
            PYTHONPATH=f"{ROOT}:{helpers}",
            PATH=os.environ["PATH"],
        )
        made = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
        assert made.returncode == 0, made.stderr
        jobs = json.loads(made.stdout)
        slurm(self.cluster, "scontrol", "uhold", jobs["to release"])
        started = [self.folder / folder / name / "events" for name in ("runs", "to-end")]
        wait_until(lambda: all(path.exists() for path in started), "programs that listen")
        self.until(jobs, BEFORE)
        return jobs

    def until(self, jobs: dict[str, str], wanted: dict[str, tuple[str, bool, int]]) -> None:
        """Wait until Slurm has the jobs as wanted, and the service says the same."""
        wait_until(
            lambda: self.in_slurm(jobs) == wanted, f"Slurm to have {wanted}: {self.in_slurm(jobs)}", 60
        )
        told = {name: state for name, (state, _, _) in wanted.items()}
        wait_until(lambda: self.told(jobs) == told, f"the service to say {told}", 60)

    def in_slurm(self, jobs: dict[str, str]) -> dict[str, tuple[str, bool, int]]:
        """Return what Slurm tells of them."""
        told = slurm(self.cluster, "squeue", "--noheader", "--states=all", "--format=%i|%T|%r|%y")
        lines = {line.split("|")[0]: line.split("|")[1:] for line in told.splitlines()}
        return {
            name: (lines[job][0], lines[job][1].startswith("JobHeld"), int(lines[job][2]))
            for name, job in jobs.items()
        }

    def told(self, jobs: dict[str, str]) -> dict[str, str]:
        """Return the states that the service tells."""
        with self.client() as client:
            return {name: client.get(f"/api/v1/jobs/{job}").json()["state"] for name, job in jobs.items()}

    def actions(self, jobs: dict[str, str]) -> dict[str, list[str]]:
        """Return what the histories say that was asked for after the submission, and by whom."""
        with self.client() as client:
            found = {name: client.get(f"/api/v1/jobs/{job}").json()["actions"] for name, job in jobs.items()}
        assert {one["who"] for acts in found.values() for one in acts[1:]} <= {"root (service, own socket)"}
        assert all(one["time"] for acts in found.values() for one in acts)
        return {name: [one["action"].split()[0] for one in acts[1:]] for name, acts in found.items()}

    @contextlib.contextmanager
    def asked(self, jobs: dict[str, str], timeout: float = 60) -> Iterator[dict[str, int]]:
        """Ask for all orders at once; yields when Slurm's commands have them all, then waits for answers.

        Yields status codes by name, filled in at the end; 0: there was no answer.
        """
        codes: dict[str, int] = {}
        before = len(self.noted("called"))

        def one(name: str, order: str) -> None:
            codes[name] = 0
            more = {"json": {"by": 1000}} if order == "nice" else {}
            with self.client(timeout) as client, contextlib.suppress(httpx2.HTTPError):
                codes[name] = client.post(f"/api/v1/jobs/{jobs[name]}/{order}", **more).status_code

        threads = [threading.Thread(target=one, args=order) for order in ORDERS.items()]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(self.noted("called")) == before + len(ORDERS), "all orders to be under way")
        yield codes
        for thread in threads:
            thread.join(60)


@pytest.fixture
def acted(cluster, tmp_path) -> Iterator[Acted]:
    made = Acted(cluster, tmp_path)
    made.prepare(tmp_path / "jobs.db")
    made.start()
    yield made
    for name in ("before", "after"):
        (made.bin / name).unlink(missing_ok=True)
    made.kill()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_service_killed_while_slurm_obeys_has_done_all_once_when_it_is_back(acted, when):
    """Before Slurm has heard of it, and after it has obeyed."""
    jobs = acted.submit("jobs")
    # A job that ended long ago is not asked for by itself.
    with sql.create_engine(f"sqlite:///{acted.store}").begin() as connection:
        connection.execute(sql.text("UPDATE jobs SET changed = changed - 7200 WHERE state = 'FAILED'"))
    (acted.bin / when).touch()
    with acted.asked(jobs) as codes:
        if when == "after":
            wait_until(lambda: acted.in_slurm(jobs) == OBEYED, "Slurm to obey")
        acted.kill()
    assert set(codes.values()) == {0}
    (acted.bin / when).unlink()
    wait_until(lambda: acted.noted("ended") == acted.noted("called"), "Slurm's commands to end")
    acted.start()
    acted.until(jobs, OBEYED)
    assert acted.actions(jobs) == {name: [order] for name, order in ORDERS.items()}
    assert len(acted.noted("called")) == len(ORDERS)


def test_what_a_killed_service_never_told_slurm_is_as_it_was_and_may_be_asked_for_again(acted):
    jobs = acted.submit("never")
    for name in ("before", "never"):
        (acted.bin / name).touch()
    with acted.asked(jobs):
        acted.kill()
    (acted.bin / "before").unlink()
    wait_until(lambda: acted.noted("ended") == acted.noted("called"), "Slurm's commands to end")
    (acted.bin / "never").unlink()
    acted.start()
    acted.until(jobs, BEFORE)
    assert acted.actions(jobs) == {name: [order] for name, order in ORDERS.items()}
    # A client that is killed, or gives up, ends nothing that it asked for.
    (acted.bin / "after").touch()
    with acted.asked(jobs, timeout=2) as codes:
        wait_until(lambda: len(codes) == len(ORDERS), "all clients")
    assert set(codes.values()) == {0}
    (acted.bin / "after").unlink()
    acted.until(jobs, OBEYED)
    assert acted.actions(jobs) == {name: [order] * 2 for name, order in ORDERS.items()}


@pytest.fixture
def database() -> Iterator[postgresql.Database]:
    # Each host has a /tmp of its own.
    with postgresql.started("/var/tmp") as made:  # noqa: S108
        yield made


def test_a_database_killed_while_slurm_obeys_is_right_when_it_is_back(cluster, database, tmp_path):
    acted = Acted(cluster, tmp_path)
    acted.prepare(postgresql.url(database.folder))
    acted.start()
    try:
        jobs = acted.submit("database")
        (acted.bin / "after").touch()
        with acted.asked(jobs) as codes:
            wait_until(lambda: acted.in_slurm(jobs) == OBEYED, "Slurm to obey")
            database.kill()
            (acted.bin / "after").unlink()
        assert set(codes.values()) == {503}
        database.start()
        acted.until(jobs, OBEYED)
        assert acted.actions(jobs) == {name: [order] for name, order in ORDERS.items()}
        assert len(acted.noted("called")) == len(ORDERS)
    finally:
        (acted.bin / "after").unlink(missing_ok=True)
        acted.kill()
