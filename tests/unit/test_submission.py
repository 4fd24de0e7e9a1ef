"""Submission in two steps, and what becomes of one left unfinished; a file stands in for the cluster."""

from __future__ import annotations

import dataclasses
import stat
from pathlib import Path

import pytest
from stand_in_cluster import StandInCluster
from wording import fails_with

from jobs.home import job_folder, job_path, new_token
from jobs.requests.submission import submit
from jobs.schedulers.base import NoAnswer, TaskState
from jobs.sites import HERE
from jobs.spec import JobSpec
from jobs.store import submitter, sync
from jobs.store.store import Store
from trainer.errors import JobError, LauncherError, StoreError

SPEC = JobSpec("a job", "train", (("true",),), "/")
# A process that has ended, on this host.
DEAD = submitter.myself().rsplit(" ", 2)[0] + " 999999999 1"


def half_submitted(store: Store, monkeypatch, *, by: str = DEAD, ago: float = 0.0, **more):
    """A row whose submitter went no further."""
    monkeypatch.setattr(submitter, "myself", lambda: by)
    token = new_token()
    with monkeypatch.context() as patched:
        now = sync.time.time() - ago
        patched.setattr("jobs.store.store.time.time", lambda: now)
        return store.add(token, SPEC, launcher="slurm", site="here", folder=job_path(token), **more)


def test_a_job_is_in_the_store_and_on_the_cluster_and_its_files_are_private(store, cluster) -> None:
    job = submit(store, cluster, SPEC, HERE)
    assert (job.label, job.state, job.site) == ("1", "PENDING", "here")
    assert cluster.tokens() == [job.token]
    folder = Path(job.folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "spec.json").stat().st_mode) == 0o600
    assert JobSpec.from_json((folder / "spec.json").read_text()) == SPEC
    assert store.get("1") == job


def test_the_row_is_there_for_others_before_the_launcher_is_called(store, cluster, monkeypatch) -> None:
    seen = []
    start = cluster.start
    monkeypatch.setattr(
        cluster, "start", lambda *a: seen.extend(Store().list(states=["SUBMITTING"])) or start(*a)
    )
    assert seen == [] and submit(store, cluster, SPEC, HERE).token == seen[0].token


def test_what_cannot_run_leaves_no_row(store, cluster) -> None:
    with fails_with(LauncherError):
        submit(store, cluster, dataclasses.replace(SPEC, kind="impossible"), HERE)
    assert store.list() == []


def test_a_refused_job_is_lost_and_says_why(store, cluster, tmp_path) -> None:
    (tmp_path / "cluster.refuse").touch()
    with fails_with(LauncherError):
        submit(store, cluster, SPEC, HERE)
    (job,) = store.list()
    assert job.state == "LOST"
    assert "was not started: the cluster said: invalid partition" in job.reason


def test_a_job_that_was_started_though_its_launcher_failed_is_found(store, cluster, tmp_path) -> None:
    (tmp_path / "cluster.mute").touch()
    job = submit(store, cluster, SPEC, HERE)
    assert (job.label, job.state, cluster.tokens()) == ("1", "PENDING", [job.token])


def test_a_job_that_nobody_can_tell_of_waits_for_recovery(store, cluster, tmp_path) -> None:
    (tmp_path / "cluster.mute").touch()
    cluster.down = True
    with fails_with(LauncherError):
        submit(store, cluster, SPEC, HERE)
    assert store.get("new-1").state == "SUBMITTING"
    assert set(sync.recover(store, {"slurm": cluster}, settle_s=0, stale_s=0)) == {"slurm"}
    assert store.get("new-1").state == "SUBMITTING"
    cluster.down = False
    sync.recover(store, {"slurm": cluster})
    assert store.get("new-1").label == "1"


def test_a_job_that_slurm_may_have_taken_is_not_said_to_be_lost_at_once(store, cluster, monkeypatch) -> None:
    def unheard(*args: object) -> str:
        raise NoAnswer("Socket timed out", cure="Wait.")

    monkeypatch.setattr(cluster, "start", unheard)
    with fails_with(NoAnswer):
        submit(store, cluster, SPEC, HERE)
    job = store.get("new-1")
    assert job.state == "SUBMITTING"
    cluster.file.write_text(f"{job.token}\n")
    sync.recover(store, {"slurm": cluster})
    assert store.get("new-1").label == "1"


def test_where_the_store_fails_after_the_start_it_is_told_that_the_job_runs(
    store, cluster, monkeypatch
) -> None:
    def full(*args: object) -> None:
        raise StoreError("the disk is full", cure="Make room.")

    monkeypatch.setattr(store, "adopt", full)
    with fails_with(StoreError):
        submit(store, cluster, SPEC, HERE)


def test_a_launcher_that_is_silent_is_asked_once(store, cluster, monkeypatch) -> None:
    for _ in range(3):
        half_submitted(store, monkeypatch)
    asked: list[str] = []

    def silent(token: str) -> None:
        asked.append(token)
        raise LauncherError("nothing")

    monkeypatch.setattr(cluster, "find", silent)
    assert set(sync.recover(store, {"slurm": cluster})) == {"slurm"}
    assert len(asked) == 1


def test_a_full_disk_before_the_start_loses_the_job_with_its_reason(store, cluster, monkeypatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("jobs.requests.submission.atomic.write_by", full)
    with pytest.raises(Exception, match="No space left"):
        submit(store, cluster, SPEC, HERE)
    assert (store.get("new-1").state, cluster.tokens()) == ("LOST", [])


def test_recovery_waits_for_a_program_that_outlives_its_submitter(store, cluster, monkeypatch) -> None:
    job = half_submitted(store, monkeypatch)
    sync.recover(store, {"slurm": cluster})
    assert store.get("new-1").state == "SUBMITTING"
    cluster.file.write_text(f"{job.token}\n")
    sync.recover(store, {"slurm": cluster})
    assert (store.get("new-1").external, store.get("new-1").state) == ("1", "PENDING")


def test_a_job_said_to_be_lost_is_found_when_it_appears_all_the_same(store, cluster, monkeypatch) -> None:
    job = half_submitted(store, monkeypatch, ago=2 * sync.SETTLE_S)
    sync.recover(store, {"slurm": cluster})
    assert store.get("new-1").state == "LOST"
    assert "was not finished, and slurm has no such job" in store.get("new-1").reason
    cluster.file.write_text(f"{job.token}\n")
    sync.recover(store, {"slurm": cluster})
    assert (store.get("new-1").external, store.get("new-1").state) == ("1", "PENDING")


def test_a_job_that_ran_and_was_forgotten_is_lost_and_says_where_its_output_is(
    store, cluster, monkeypatch
) -> None:
    job = half_submitted(store, monkeypatch, ago=2 * sync.SETTLE_S)
    job_folder(job.token).joinpath("out.log").touch()
    sync.recover(store, {"slurm": cluster})
    assert f"it did start: its output is in {job.folder}" in store.get("new-1").reason


def test_a_submitter_that_lives_or_cannot_be_asked_is_given_longer(store, cluster, monkeypatch) -> None:
    half_submitted(store, monkeypatch, by=submitter.myself(), ago=2 * sync.SETTLE_S)
    half_submitted(store, monkeypatch, by="elsewhere/boot/1 2 3", ago=2 * sync.SETTLE_S)
    sync.recover(store, {"slurm": cluster})
    assert {job.state for job in store.list()} == {"SUBMITTING"}
    sync.recover(store, {"slurm": cluster}, stale_s=sync.SETTLE_S)
    assert {job.state for job in store.list()} == {"LOST"}


def test_jobs_of_other_users_launchers_and_clusters_are_left_alone(store, cluster, monkeypatch) -> None:
    half_submitted(store, monkeypatch, ago=1e6, place="another cluster")
    with monkeypatch.context() as patched:
        patched.setattr(submitter, "user", lambda: "somebody else")
        half_submitted(store, monkeypatch, ago=1e6)
    sync.recover(store, {"slurm": cluster})
    sync.recover(store, {"docker": StandInCluster(cluster.file, name="docker")})
    assert {job.state for job in store.list()} == {"SUBMITTING"}


def test_a_job_waits_for_others_by_the_names_that_their_launcher_gave(store, cluster) -> None:
    first, second = submit(store, cluster, SPEC, HERE), submit(store, cluster, SPEC, HERE)
    cluster.answers = {"1": [TaskState(0, "COMPLETED", 0)], "2": [TaskState(0, "RUNNING")]}
    submit(store, cluster, dataclasses.replace(SPEC, after=(first.label, second.label)), HERE)
    # Slurm forgets what has completed, and would refuse to wait for it.
    assert cluster.started_after[-1] == ["2"]


def test_a_job_waits_for_one_that_failed_and_was_started_again(store, cluster) -> None:
    submit(store, cluster, SPEC, HERE)
    cluster.answers = {"1": [TaskState(0, "FAILED", 1)]}
    with fails_with(JobError):
        submit(store, cluster, dataclasses.replace(SPEC, after=("1",)), HERE)
    cluster.answers = {"1": [TaskState(0, "RUNNING", restarts=1)]}
    submit(store, cluster, dataclasses.replace(SPEC, after=("1",)), HERE)
    assert cluster.started_after[-1] == ["1"]


@pytest.mark.parametrize(
    ("after", "why"),
    [
        ("9", "no job '9'"),
        ("1", "ended FAILED"),
        ("2_0", "one task"),
        ("new-3", "is being submitted"),
        ("docker-4", "belongs to another system"),
    ],
)
def test_a_job_that_would_never_start_is_refused(store, cluster, monkeypatch, after, why) -> None:
    for _ in range(2):
        submit(store, cluster, SPEC, HERE)
    half_submitted(store, monkeypatch)
    submit(store, StandInCluster(cluster.file.with_name("engine"), name="docker"), SPEC, HERE)
    cluster.answers = {"1": [TaskState(0, "FAILED", 1)], "2": [TaskState(0, "RUNNING")]}
    with pytest.raises(JobError, match=why):
        submit(store, cluster, dataclasses.replace(SPEC, after=(after,)), HERE)
    assert len(store.list()) == 4


def test_two_jobs_of_one_token_are_told(store, cluster) -> None:
    job = submit(store, cluster, SPEC, HERE)
    with fails_with(StoreError):
        store.adopt(job, "77")
