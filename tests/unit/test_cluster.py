"""What runs, waits and is free: by Slurm's own answers, and on hosts without a scheduler."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from wording import fails_with

from jobs import cluster
from jobs.job import Job
from jobs.local import hosts as on_hosts
from jobs.schedulers.base import TaskState
from jobs.schedulers.cluster_view import AccountShare, Host
from jobs.schedulers.slurm import queue as slurm
from jobs.spec import JobSpec, Resources
from trainer.errors import JobError, LauncherError

ANSWERS = Path(__file__).parent / "slurm_answers"


def test_a_real_queue_is_read_with_its_reasons_gpus_and_times():
    queue = {one.id: one for one in slurm.queue_in((ANSWERS / "cluster-squeue.txt").read_text())}
    assert list(queue) == ["3", "4_[1-9%2]", "6", "5", "1", "2", "4_0"]
    assert (queue["1"].gpus, queue["1"].nodes, queue["1"].hosts) == (2, 2, "n[1-2]")
    assert (queue["1"].state, queue["1"].reason, queue["1"].limit) == ("RUNNING", "", "30:00")
    assert queue["1"].started == 1795655628.0 and queue["1"].expected is None
    assert queue["3"].reason.startswith("Nodes required for job are DOWN")
    assert (queue["5"].reason, queue["6"].reason) == ("JobHeldUser", "Dependency")
    assert (queue["3"].started, queue["3"].gpus, queue["3"].cpus) == (None, 0, 3)


@pytest.mark.parametrize(
    ("tasks", "per_job", "per_node", "per_task", "gpus"),
    [
        (4, "N/A", "gres:gpu:2", "N/A", 4),
        (4, "N/A", "gres/gpu:a100:1", "N/A", 2),
        (4, "gres:gpu:3", "N/A", "N/A", 3),
        (4, "N/A", "N/A", "gres/gpu=1", 4),
        (4, "N/A", "gres:gpu", "N/A", 2),
        (4, "N/A", "gres:shard:2", "N/A", 0),
    ],
)
def test_a_cluster_that_does_not_account_for_gpus_tells_those_that_were_asked_for(
    tasks, per_job, per_node, per_task, gpus
):
    line = f"1|ada|RUNNING|all|2|4|{tasks}|cpu=4,node=2|{per_job}|{per_node}|{per_task}|5|6|5:00|n[1-2]|None|"
    assert slurm.queue_in(line)[0].gpus == gpus


def test_hosts_are_told_once_and_those_that_are_drained_have_nothing_free():
    hosts = slurm.hosts_in((ANSWERS / "cluster-sinfo.txt").read_text())
    assert [host.name for host in hosts] == ["n1", "n2", "n3"]
    n1, n2, n3 = hosts
    assert (n1.partitions, n1.usable, n1.gpus_free, n1.cpus_free) == (("all", "urgent"), True, 0, 0)
    assert (n2.gpus, n2.gpus_used, n2.gpus_free, n2.memory_mib) == (2, 1, 1, 4000)
    assert (n3.state, n3.usable, n3.gpus_free, n3.cpus_free) == ("drained", False, 0, 0)
    assert n3.reason == 'fan | broken: "x'  # as Slurm keeps it
    assert slurm.shares_in((ANSWERS / "cluster-sshare.txt").read_text(), "root") == (
        AccountShare("root", None, 0, 0),
    )


@pytest.mark.parametrize("state", ["down*", "idle*", "draining", "maint", "reserved", "allocated+", "mixed-"])
def test_a_state_with_a_sign_is_usable_where_its_host_answers(state):
    (host,) = slurm.hosts_in(f"n1|all|{state}|1/3/0/4|10|5|gpu:2|gpu:1|x|")
    assert host.usable is (state in ("allocated+", "mixed-"))


def test_gpus_are_counted_of_any_kind_once():
    assert slurm.gpus_of_gres("gpu:a100:4(S:0-1),gpu:t4:1,shard:16") == 5
    assert slurm.gpus_of_gres("gpu:a100:2(IDX:0-1)") == 2 and slurm.gpus_of_gres("(null)") == 0
    assert slurm.gpus_of_tres("cpu=4,gres/gpu:a100=2,gres/gpu=2,node=1") == 2
    assert slurm.gpus_of_tres("gres/gpu:a100=2,gres/gpu:t4=1") == 3 and slurm.gpus_of_tres("cpu=4") == 0


def test_lines_that_are_cut_or_no_lines_are_passed_over():
    assert slurm.queue_in("squeue: warning\n1|root|RUNNING\n\n") == ()
    assert slurm.hosts_in("garbage") == () == slurm.shares_in("a|b", "b")


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_slurm_is_asked_for_exact_times_and_whole_lists_whatever_the_user_has_set(tmp_path, monkeypatch):
    echo = 'echo "$0|$SLURM_TIME_FORMAT|$SLURM_BITSTR_LEN|$SQUEUE_STATES|$SLURM_CONF" >> "$OUT"'
    for name in ("squeue", "sinfo"):
        program(tmp_path, name, echo)
    program(tmp_path, "sshare", "exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    monkeypatch.setenv("SQUEUE_STATES", "all")
    monkeypatch.setenv("SLURM_CONF", "/x/slurm.conf")
    assert slurm.is_here()
    assert cluster.look([]).shares == ()
    assert [line.split("|")[1:] for line in (tmp_path / "out").read_text().splitlines()] == [
        ["%s", "0", "", "/x/slurm.conf"]
    ] * 2
    program(tmp_path, "sinfo", "echo slurmctld is away >&2; exit 1")
    with fails_with(LauncherError):
        cluster.look([])


def job(launcher: str, *tasks: TaskState) -> Job:
    spec = JobSpec("mine", "train", (("cingulum",),) * len(tasks), "/", Resources(nodes=2, ranks_per_node=3))
    return Job(7, "t", launcher, "", "here", "7", spec, "/f", "ada", "x", 1.0, 1.0, tasks, 1)


@pytest.fixture
def profile(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    (tmp_path / "cingulum" / "sites").mkdir(parents=True)
    (tmp_path / "cingulum" / "sites" / "default.yaml").write_text(f"hostfile: {tmp_path / 'hosts'}\n")
    (tmp_path / "hosts").write_text("n1 slots=4\nn2 slots=2\nn3 slots=4\n")
    return tmp_path / "hosts"


def test_without_slurm_hosts_are_those_of_the_profile_less_what_own_jobs_use(profile):
    running = TaskState(0, "RUNNING", hosts=("n1", "n9"), started=2.0)
    waiting = TaskState(1, "PENDING", reason="two tasks at once")
    ended = TaskState(2, "COMPLETED", 0, ended=3.0)
    picture = cluster.look([job("mpirun", running, waiting, ended), job("slurm", running)])
    assert picture.scheduler == "mpirun" and picture.note == on_hosts.NOTE
    assert [(host.name, host.cpus_free, host.usable) for host in picture.hosts] == [
        ("n1", 1, True), ("n2", 2, True), ("n3", 4, True), ("n9", 0, False)
    ]  # fmt: skip
    assert [(one.id, one.reason, one.hosts) for one in picture.queue] == [
        ("mpirun-7_0", "", "n1,n9"),
        ("mpirun-7_1", "two tasks at once", ""),
    ]
    profile.unlink()
    with fails_with(JobError):
        cluster.look([])


def test_without_a_profile_there_is_this_host(profile):
    (profile.parent / "cingulum" / "sites" / "default.yaml").unlink()
    (host,) = cluster.look([]).hosts
    assert host.name == socket.gethostname() and host.cpus == host.cpus_free >= 1
    (busy,) = cluster.look([job("mpirun", TaskState(0, "RUNNING", started=1.0))]).hosts
    assert isinstance(busy, Host) and busy.cpus_used == 3
