"""The cluster as the service tells it: what it was told last, whether or not the scheduler answers now."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from served import HOST, OURS
from starlette.testclient import TestClient

from cingulum.service import cluster
from cingulum.service.app import create_app
from cingulum.service.callers import AtSocket
from cingulum.service.cluster import ClusterNow
from cingulum.service.jobs_now import JobsNow
from jobs.schedulers.cluster_view import Picture, Queued
from jobs.schedulers.slurm import queue
from jobs.store import submitter
from trainer.errors import LauncherError

ANSWERS = Path(__file__).parent / "slurm_answers"


class Scheduler:
    """One that answers as it is told."""

    def __init__(self) -> None:
        me = submitter.user()
        own = (
            Queued("4714", me, "RUNNING", nodes=2, cpus=4, gpus=2, hosts="n[1-2]", started=1.0),
            Queued("4711_[2-9%2]", me, "PENDING", "JobArrayTaskLimit", submitted=1.0, expected=2.0),
        )
        theirs = (Queued("99", "eve", "PENDING", "Priority", cpus=64, gpus=8, submitted=1.0),)
        hosts = queue.hosts_in((ANSWERS / "cluster-sinfo.txt").read_text())
        self.picture = Picture("slurm", hosts, (*theirs, *own))
        self.asked, self.refuses = 0, ""
        self.may_answer = threading.Event()
        self.may_answer.set()

    def look(self, jobs) -> Picture:
        self.asked += 1
        self.may_answer.wait(20)
        if self.refuses:
            raise LauncherError(self.refuses)
        return self.picture


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler()


def client_of(store, scheduler: Scheduler) -> TestClient:
    machines = ClusterNow(store, submitter.user(), scheduler.look, asked_s=0.05)
    app = create_app(JobsNow(store), AtSocket("me"), machines=machines)
    return TestClient(app, base_url=HOST, headers=OURS)


@pytest.fixture
def client(store, served_jobs, scheduler):
    with client_of(store, scheduler) as client:
        yield client


def told(client, query: str = "") -> dict:
    return client.get(f"/api/v1/cluster?{query}").json()


def until(client, is_so, query: str = "") -> dict:
    """Return the first answer of which it is so; fails after ten seconds."""
    end = time.monotonic() + 10
    while not is_so(found := told(client, query)):
        assert time.monotonic() < end, found
    return found


def test_hosts_queue_and_one_s_own_part_are_told(client):
    found = until(client, lambda one: one["as_of"])
    assert (found["scheduler"], found["stale"], found["warnings"]) == ("slurm", False, [])
    assert found["totals"] == {
        "hosts": 3, "hosts_usable": 2, "cpus": 6, "cpus_free": 0, "gpus": 6, "gpus_free": 1
    }  # fmt: skip
    assert {name: found["mine"][name] for name in ("running", "waiting", "cpus", "gpus")} == {
        "running": 1, "waiting": 1, "cpus": 4, "gpus": 2
    }  # fmt: skip
    eve, trains, folds = found["queue"]
    assert (eve["user"], eve["mine"], eve["name"], eve["page"], eve["waits"]) == (
        "eve",
        False,
        None,
        None,
        True,
    )
    assert (trains["name"], trains["page"], trains["mine"]) == ("trains", "/jobs/new-4", True)
    assert (folds["name"], folds["page"], folds["reason"]) == ("folds", "/jobs/new-1", "JobArrayTaskLimit")
    assert folds["expected"] == "1970-01-01T00:00:02+00:00"


def test_hosts_and_queue_are_searched_and_cut_and_totals_stay(client):
    until(client, lambda one: one["as_of"])
    found = told(client, "text=N3")
    assert [host["name"] for host in found["hosts"]] == ["n3"] and found["hosts_total"] == 1
    assert found["queue_total"] == 0 and found["totals"]["hosts"] == 3
    assert [job["id"] for job in told(client, "text=priority")["queue"]] == ["99"]
    assert [job["name"] for job in told(client, "mine=true")["queue"]] == ["trains", "folds"]
    found = told(client, "limit=1")
    assert (len(found["queue"]), found["queue_total"], len(found["hosts"]), found["hosts_total"]) == (
        1,
        3,
        1,
        3,
    )


def test_while_the_scheduler_does_not_answer_the_last_answer_is_told_as_stale(client, scheduler):
    until(client, lambda one: one["as_of"])
    scheduler.refuses = "slurmctld is away"
    # An answer that only took long is stale, too, and tells no reason.
    found = until(client, lambda one: one["stale"] and one["warnings"])
    assert "slurmctld is away" in found["warnings"][0] and len(found["hosts"]) == 3
    scheduler.refuses = ""
    assert until(client, lambda one: not one["stale"])["warnings"] == []


def test_no_request_waits_for_a_scheduler_that_hangs(client, scheduler):
    scheduler.may_answer.clear()
    try:
        first = told(client)
        assert (first["as_of"], first["hosts"], first["stale"]) == (None, [], False)
        scheduler.may_answer.set()
        until(client, lambda one: one["as_of"])
        scheduler.may_answer.clear()
        began = time.monotonic()
        found = until(client, lambda one: one["stale"])
        assert time.monotonic() - began < 5 and len(found["queue"]) == 3
    finally:
        scheduler.may_answer.set()


def test_nobody_is_asked_while_nobody_looks(store, served_jobs, scheduler, monkeypatch):
    monkeypatch.setattr(cluster, "_LOOKS_S", 0.2)
    with client_of(store, scheduler) as client:
        assert scheduler.asked == 0
        until(client, lambda one: one["as_of"])
        quiet, seen = 0, scheduler.asked
        while quiet < 10:  # asks end by themselves
            time.sleep(0.05)
            quiet = quiet + 1 if scheduler.asked == seen else 0
            seen = scheduler.asked
        before = scheduler.asked
        told(client)
        end = time.monotonic() + 10
        while scheduler.asked == before:
            assert time.monotonic() < end
