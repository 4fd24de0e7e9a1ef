"""mpirun over ssh on emulated hosts: ranks, hosts and links that fail, and what becomes of the job."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import tiny_runs
from ssh_jobs import BOUND_S, START_S, TRAINING_S, Job, are_up, ranks_end, run, start, waiting

from jobs.local.attended_files import Ledger
from jobs.sites import Site
from jobs.spec import JobSpec, Resources

ROOT = Path(__file__).parents[2]
HOSTILE = "a,b=c;\"d\" 'e' $HOME `id` $(id) \\ *\n-x é"


def test_a_killed_rank_is_named_and_all_start_again(cluster, tmp_path):
    job = start(cluster, tmp_path, waiting(tmp_path))
    job.wait(are_up(tmp_path, 3), "three ranks", START_S)
    cluster.exec("n2", ["pkill", "-9", "-f", "python.* .*attended.py"])
    ranks_end(job, ["n1", "n3"], "attended.py")
    entry = job.end()
    assert (entry.state, entry.restarts, entry.hosts) == ("COMPLETED", 1, ("n1", "n2", "n3"))
    assert "rank 1 @ n2\twas killed by signal 9 (SIGKILL)" in job.failures[0]


def test_a_cut_link_ends_the_ranks_on_both_sides_and_a_spare_host_takes_over(cluster, tmp_path):
    job = start(cluster, tmp_path, waiting(tmp_path), resources=Resources(nodes=2))
    job.wait(are_up(tmp_path, 2), "two ranks", START_S)
    assert job.entry().hosts == ("n1", "n2")
    cluster.link("n2", False)
    ranks_end(job, ["n1", "n2"], "attended.py")
    entry = job.end()
    assert (entry.state, entry.restarts, entry.hosts) == ("COMPLETED", 1, ("n1", "n3"))
    assert "\tn2\tdoes not answer" in job.failures[0]


def test_an_mpirun_that_waits_for_a_lost_host_is_ended(cluster, tmp_path):
    """It has told the daemon on the cut host to end, and would wait a quarter of an hour for its farewell."""
    job = start(cluster, tmp_path, waiting(tmp_path), requeues=0)
    job.wait(are_up(tmp_path, 3), "three ranks", START_S)
    cluster.link("n3", False)
    cluster.exec("n1", ["pkill", "-9", "-f", "python.* .*attended.py"])
    ranks_end(
        job, ["n1", "n2", "n3"], "attended.py", seconds=120
    )  # 24 s; once, after mpirun had crashed, over 40
    entry = job.end()
    assert entry.state == "NODE_FAIL" and entry.reason.startswith("n3: does not answer")


def test_without_shrink_a_job_waits_for_its_host_a_bounded_number_of_times(cluster, tmp_path):
    job = start(cluster, tmp_path, waiting(tmp_path))
    job.wait(are_up(tmp_path, 3), "three ranks", START_S)
    cluster.link("n3", False)
    entry = job.end()
    assert entry.state == "NODE_FAIL" and entry.failures == 2
    assert "n3: does not answer; 2 of the 3 hosts needed are left" in entry.reason


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", ["off", "stopped"])
def test_a_training_that_loses_a_host_or_hangs_ends_finished(cluster, tmp_path, fault):
    """Host n2 loses its power; or a rank stops amid a collective, which only our watchdog sees."""
    shards = tiny_runs.make_shards(tmp_path / "shards")
    changes = {"train__global_batch": 6, "train__epochs": 8, "guards__timeout_s": 15}
    config = tiny_runs.write_config(tmp_path, shards, "run", checkpoint__every_steps=4, **changes)
    task = (sys.executable, "-m", "cingulum", "train", str(config), "--resume")
    resources = Resources(nodes=2, least_nodes=1)
    job = start(cluster, tmp_path, task, hosts="n1\nn2\n", resources=resources, shrink=True, global_batch=6)
    folder = tmp_path / "run"
    job.wait(lambda: tiny_runs.steps(folder), "a checkpoint", START_S)
    if fault == "off":
        cluster.power_off("n2")
        ranks_end(job, ["n1"], "cingulum train")
    else:
        cluster.exec("n2", ["pkill", "-STOP", "-f", "python.* .*cingulum train"])
        ranks_end(job, ["n1", "n2"], "cingulum train")
    saved = max(tiny_runs.steps(folder))
    entry = job.end()
    assert (entry.state, entry.restarts) == ("COMPLETED", 1), job.log
    assert entry.hosts == (("n1",) if fault == "off" else ("n1", "n2"))
    assert f"step-{saved:08d}" in job.log and "resumed from" in job.log
    assert tiny_runs.result(folder)["epochs"] == 8
    assert json.loads((folder / "run.json").read_text())["world_size"] == len(entry.hosts)
    _, _, where, why = job.failures[0].split("\t")
    expected = ("n2" if fault == "off" else "rank 1 @ n2", True)
    assert (where, "does not answer" in why) == expected, (job.failures, job.log)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_asynchronous_training_goes_on_without_a_host_that_lost_its_power(cluster, tmp_path):
    """Workers on n1 and n2, the server on n3. mpirun, which would wait for n2 for ever, is ended."""
    shards = tiny_runs.make_shards(tmp_path / "shards")
    changes = {"train__strategy": {"name": "parameter-server", "mode": "async"}, "train__epochs": 6}
    config = tiny_runs.write_config(tmp_path, shards, "run", **changes)
    task = (sys.executable, "-m", "cingulum", "train", str(config), "--resume")
    job = start(cluster, tmp_path, task, outlives=True, requeues=0)
    folder = tmp_path / "run"
    job.wait(lambda: tiny_runs.steps(folder), "a checkpoint", TRAINING_S)
    cluster.power_off("n2")
    entry = job.end()
    assert (entry.state, entry.restarts) == ("COMPLETED", 0), job.log
    result = tiny_runs.result(folder)
    assert result["dead_workers"] == ["rank 1 @ n2"] and result["steps"] == 36
    assert sum(result["staleness"]["updates"].values()) == 36


def test_a_user_without_rights_runs_jobs_over_ssh_and_is_told_who_is_there(cluster, tmp_path):
    """Root's Python is closed to him; the system's takes the same packages, where it is of our version."""
    python, packages = "/usr/bin/python3", sysconfig.get_path("purelib")
    home = cluster.folder / "home" / cluster.user / "jobs"
    study, words = home / "my study", "import jobs.sites, sys; print(*sys.version_info[:2])"
    environment = {"CINGULUM_HOME": str(home), "PYTHONPATH": f"{ROOT}:{packages}", "MY_KEY": "of the shell"}
    seen = cluster.exec("ctl", [python, "-c", words], user=cluster.user, environment=environment)
    if seen.stdout.split() != [str(number) for number in sys.version_info[:2]]:
        pytest.skip(f"{python} is no Python that could run cingulum for {cluster.user}: {seen}")
    given = {"resources": Resources(nodes=2), "environment": {"MY_KEY": HOSTILE}, "requeues": 1}
    script = (
        'id -un >"$1/user-$2"; printf %s "$MY_KEY" >"$1/key-$2"; until [ -e "$1/go" ]; do sleep 0.1; done'
    )
    task = ("sh", "-c", f'set -- "$1" "$OMPI_COMM_WORLD_RANK"; {script}', "sh", str(study))
    spec = JobSpec("first", "command", (task,), str(study), **given)
    site = Site(hostfile=str(study / "hosts"), interfaces=("eth0",), mpirun=f"{sys.prefix}/bin/mpirun")
    study.mkdir(parents=True)
    (study / "hosts").write_text("n1\nn2\nn3\n")
    for path in (home, study):
        os.chown(path, home.parent.stat().st_uid, home.parent.stat().st_gid)

    def submit() -> Any:
        start = [python, str(Path(__file__).with_name("start_on_hosts.py"))]
        return cluster.exec(
            "ctl",
            [*start, spec.to_json(), site.model_dump_json()],
            user=cluster.user,
            environment=environment,
            timeout=START_S,
        )

    cluster.link("n1", False)  # a spare, by what is asked for
    ran = submit()
    assert ran.returncode == 0 and "n1: cannot be reached by ssh" in ran.stderr, ran.stderr
    job = Job(cluster, Path(ran.stdout.strip()))
    job.wait(lambda: (study / "key-0").exists() and (study / "key-1").exists(), "two ranks", START_S)
    assert job.entry().hosts == ("n2", "n3") and "n1: no answer; passed over" in job.log
    spec = dataclasses.replace(spec, name="second", resources=Resources(nodes=2))
    ran = submit()
    assert "warning: n2, n3: job 'first' runs there" in ran.stderr
    cluster.exec("n3", ["pkill", "-9", "-f", "sh -c set -- "])
    job.wait(lambda: job.entry().failures, "the failure", BOUND_S)
    (study / "go").touch()
    assert (job.end().state, job.end().restarts) == ("COMPLETED", 1), job.log
    assert Job(cluster, Path(ran.stdout.strip())).end().state == "COMPLETED"
    for rank in range(2):
        assert (study / f"user-{rank}").read_text().strip() == cluster.user
        assert (study / f"key-{rank}").read_text() == HOSTILE
    for path in (job.folder, *job.folder.iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 and path.stat().st_uid == study.stat().st_uid


def test_hosts_that_could_not_run_a_job_are_named_before_it_starts(cluster, tmp_path):
    hostfile = tmp_path / "hosts"
    hostfile.write_text("n1\nn2\nn3\n")
    site = Site(hostfile=str(hostfile), interfaces=("ib0",))
    spec = JobSpec("test", "command", (("true",),), str(tmp_path), resources=Resources(nodes=3))
    cluster.link("n2", False)
    ran = run(cluster, tmp_path, spec, site)
    assert ran.returncode == 1
    assert "n2: cannot be reached by ssh: ssh: connect to host n2 port" in ran.stderr
    assert "n1: there is no network interface ib0" in ran.stderr and "eth0" in ran.stderr
    assert not (tmp_path / "home").exists()
    only_here = "/dev/shm/only-here"  # noqa: S108
    cluster.exec("ctl", ["mkdir", only_here])
    ran = run(cluster, tmp_path, JobSpec("test", "command", (("true",),), only_here), site)
    assert f"n3: the job's folder {only_here} is not there" in ran.stderr


def test_in_an_allocation_its_hosts_are_used_and_answer(cluster, tmp_path):
    """The task outlasts several questions whether its hosts are there."""
    task = (sys.executable, "-c", "import time; time.sleep(6)")
    spec = JobSpec("test", "command", (task,), str(tmp_path), resources=Resources(nodes=2))
    script = '"$@" && until grep -q COMPLETED "$HOME_OF_JOBS"/jobs/*/state.json; do sleep 0.2; done'
    ran = run(
        cluster,
        tmp_path,
        spec,
        Site(environment={"CINGULUM_CHECK_HOSTS_S": "0.5"}),
        *(
            "env",
            f"HOME_OF_JOBS={tmp_path / 'home'}",
            "timeout",
            "80",
            "salloc",
            "-N2",
            "--ntasks-per-node=1",
        ),
        *("bash", "-c", script, "bash"),
    )
    (state,) = (tmp_path / "home" / "jobs").glob("*/state.json")
    entry = Ledger.read(state.parent).tasks[0]
    assert ran.returncode == 0, (ran.stderr, entry, (state.parent / "out.log").read_text())
    assert (entry.state, entry.restarts, entry.hosts) == ("COMPLETED", 0, ("n1", "n2"))
