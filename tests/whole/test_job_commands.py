"""The commands about jobs, from submit to defer, with a launcher that is a dictionary."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from planned_networks import small
from pretended_slurm import submit, told

from cingulum.cli import app
from jobs.requests import actions
from jobs.spec import Resources
from jobs.store.store import Store
from trainer.errors import LauncherError
from trainer.planning.placement import ways
from trainer.planning.placement.plan_file import PlanFile
from trainer.planning.placement.units import place

HOSTILE = "a\x1b[31m\n$(rm -rf /) | --json 'ä'"


def test_a_job_is_submitted_listed_and_shown(slurm, capsys):
    assert app.run(["submit", "mine.yaml", "--nodes", "3", "--name", HOSTILE]) == 0
    said = capsys.readouterr().out
    assert "Submitted 4711: a?[31m?$(rm -rf /) | --json 'ä' (train)" in said and "logs 4711 --follow" in said
    slurm.becomes("4711", "RUNNING", hosts=("n1", "n2", "n3"), started=time.time() - 75)
    assert app.run(["jobs"]) == 0
    table = capsys.readouterr().out
    assert "\x1b" not in table and all(len(line) <= 80 for line in table.splitlines())
    assert "RUNNING" in table and re.search(r" 1:[1-5]\d ", table) and "n1,n2,n3" in table
    assert app.run(["show", "4711"]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and "4711  RUNNING on n1,n2,n3 for 1:" in shown and " SUBMITTING" in shown
    (job,) = told(capsys, "jobs")["jobs"]  # type: ignore[index]
    assert job["name"] == HOSTILE and job["tasks"][0]["hosts"] == ["n1", "n2", "n3"]


def test_a_long_reason_leaves_ids_and_states_whole(slurm, capsys):
    (job,) = submit(capsys, "--name", "n" * 200)
    slurm.becomes(
        job, "OUT_OF_MEMORY", reason="r" * 300, hosts=tuple(f"node{k}" for k in range(9)), ended=5.0
    )
    assert app.run(["jobs"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in table)
    assert table[1].startswith("4711  nnnnnnnnnnnnnnnn  train  OUT_OF_MEMORY")


def test_the_configuration_is_kept_as_it_was_and_private(slurm, tmp_path, capsys):
    submit(capsys, "train.epochs=3")
    spec, _ = slurm.started[0]
    kept = tmp_path / spec.tasks[0][-2]
    assert yaml.safe_load(kept.read_text())["train"]["epochs"] == 3
    assert kept.stat().st_mode & 0o777 == 0o600 and kept.parent.stat().st_mode & 0o777 == 0o700
    slurm.becomes("4711", "COMPLETED", exit_code=0, ended=5.0)
    submit(capsys, "train.epochs=4")
    assert slurm.started[1][0].tasks != spec.tasks
    assert yaml.safe_load(kept.read_text())["train"]["epochs"] == 3


def test_a_chain_waits_from_link_to_link(slurm, capsys):
    first = submit(capsys)
    ids = submit(capsys, "--then", "evaluate,report", "--after", first[0])
    assert ids == ["4712", "4713", "4714"]
    assert [after for _, after in slurm.started[1:]] == [("4711",), ("4712",), ("4713",)]


def test_where_a_chain_breaks_it_is_told_what_was_submitted(slurm, capsys):
    slurm.refuses = "report"
    assert app.run(["submit", "mine.yaml", "--then", "evaluate,report"]) == 1
    said = capsys.readouterr().err
    assert "the queue is full" in said and "Wait. Submitted before it: 4711 4712" in said
    slurm.refuses = "preflight"
    assert app.run(["submit", "mine.yaml", "name=other", "--then", "evaluate,report"]) == 1
    assert len(slurm.started) == 2  # nothing of it was submitted


def test_a_dry_run_shows_everything_and_writes_nothing(slurm, tmp_path, capsys):
    before = sorted(tmp_path.rglob("*"))
    assert app.run(["submit", "mine.yaml", "--then", "report", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert f"{tmp_path}/home/jobs/0000000000000000/job.sbatch:\n  #!/bin/bash\n" in said
    assert f"\nsbatch {tmp_path}/home/jobs/0000000000000000/job.sbatch" in said
    assert "'--dependency=afterok:<id of mine>'" in said
    plan = told(capsys, "submit", "mine.yaml", "--dry-run")
    assert plan["jobs"][0]["command"][0] == "sbatch"  # type: ignore[index]
    assert yaml.safe_load(plan["config"]["text"])["name"] == "mine"  # type: ignore[index]
    assert sorted(tmp_path.rglob("*")) == before and slurm.started == []


def test_gpus_that_this_environment_cannot_use_are_a_warning(slurm, capsys, monkeypatch):
    installed = {"tensorflow-cpu"}

    def version(name):
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return "2.21.0"

    monkeypatch.setattr(metadata, "version", version)
    said = "warning: GPUs are asked for, and the TensorFlow of this environment (tensorflow-cpu) uses none"
    for words, warned in (((), False), (("--gpus-per-node", "1"), True)):
        assert app.run(["submit", "mine.yaml", *words, "--dry-run"]) == 0
        assert (said in capsys.readouterr().err) == warned
    installed.add("tensorflow")
    assert app.run(["submit", "mine.yaml", "--gpus-per-node", "1", "--dry-run"]) == 0
    assert "warning" not in capsys.readouterr().err


def test_submit_asks_as_its_own_words_and_the_profile_say(slurm, tmp_path, capsys):
    kinds = {"report": {"partition": "cpu", "minutes": 30}}
    site = {"partition": "gpu", "cpus_per_rank": 8, "memory": "4G", "grace_s": 600, "kinds": kinds}
    (tmp_path / "site.yaml").write_text(yaml.safe_dump(site))
    words = ("--site", "./site.yaml", "--time", "36h", "--cpus-per-rank", "2", "--then", "report")
    submit(capsys, *words, "--grace", "90")
    training, report = (spec for spec, _ in slurm.started)
    assert (training.grace_s, report.grace_s) == (90, 90)
    assert training.resources == Resources(cpus_per_rank=2, memory_mib=4096, minutes=36 * 60)
    assert report.resources == Resources(cpus_per_rank=2, memory_mib=4096, minutes=30)
    submit(capsys, *words[:2], "name=other")
    spec, _ = slurm.started[-1]
    assert (spec.resources, spec.grace_s) == (Resources(cpus_per_rank=8, memory_mib=4096), None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere.yaml"], "there is no such file"),
        (["mine.yaml", "train.epohcs=3"], "Did you mean 'train.epochs'"),
        (["mine.yaml", "--ndoes", "3"], "--nodes"),
        (["mine.yaml", "--launcher", "slrum"], "slurm"),
        (["mine.yaml", "--nodes", "0"], "greater than or equal to 1"),
        (["mine.yaml", "--nodes", "5"], "12 samples cannot be shared evenly by 5 rank(s)"),
        (["mine.yaml", "--nodes", "6", "--shrink"], "may go on with 5 of 6 nodes"),
        (["mine.yaml", "--least-nodes", "2"], "Add --shrink"),
        (["mine.yaml", "--launcher", "mpirun", "--image", "a.sif"], "runs in no image"),
        (["mine.yaml", "--nodes", "2", "--shrink", "--least-nodes", "3"], "least_nodes: 3"),
        (["mine.yaml", "--time", "soon"], "is not a duration"),
        (["mine.yaml", "--memory", "lots"], "is not a size"),
        (["mine.yaml", "--then", "evalute"], "Did you mean 'evaluate'"),
        (["mine.yaml", "--kind", "trian"], "Did you mean 'train'"),
        (["mine.yaml", "--kind", "crossval"], "how many folds"),
        (["mine.yaml", "--seeds", "2"], "are for a cross-validation"),
        (["mine.yaml", "--folds", "1"], "greater than or equal to 2"),
        (["mine.yaml", "--kind", "evaluate"], "there is no such run folder"),
        (["mine.yaml", "--after", "99"], "There is no job '99'"),
        (["mine.yaml", "--after", "; rm"], "is not the id of a job"),
        (["mine.yaml", "--site", "montain"], "There is no site profile 'montain'"),
        (["mine.yaml", "data.shards=gone"], "gone is not a shard set"),
        (["mine.yaml", "--import", "pictures", "--import-options", "--lable x"], "--label"),
        (["mine.yaml", "--import", "pictures", "--import-options", "'open"], "No closing quotation"),
        (["mine.yaml", "--import-options", "--size 96"], "Add --import SOURCE"),
    ],
)  # fmt: skip
def test_what_cannot_be_submitted_is_refused_with_a_word_of_help(slurm, capsys, words, said, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    assert app.run(["submit", *words]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert slurm.started == []
    assert [
        path for path in sorted(tmp_path.rglob("*")) if path not in before and "home" not in str(path)
    ] == []


def test_a_container_sees_what_the_run_reads_and_writes_and_the_shards_it_cannot_change(
    slurm, tmp_path, capsys
):
    shrinking = ("--nodes", "3", "--shrink", "--least-nodes", "2")
    submit(capsys, f"runs={tmp_path.parent}/runs-elsewhere", "train.accumulation=2", *shrinking)
    spec, _ = slurm.started[0]
    assert spec.binds == (f"{tmp_path.parent}/runs-elsewhere",) and spec.readonly == (f"{tmp_path}/shards",)
    assert (spec.global_batch, spec.resources.least_nodes) == (6, 2)


def test_a_container_sees_the_files_that_a_run_reads_from_elsewhere_and_cannot_change_them(
    slurm, tmp_path, capsys, monkeypatch
):
    study, plan = tmp_path / "study", tmp_path / "plan.json"
    study.mkdir()
    (tmp_path / "mine.yaml").rename(study / "mine.yaml")
    (tmp_path / "shards").rename(study / "shards")
    monkeypatch.chdir(study)
    network = small()
    layouts = ways.spatial(network, (2,), range(2))
    made = PlanFile.of(place(network, layouts), name="small", strategy="spatial", ranks=2)
    plan.write_text(made.text())
    words = ("model.name=../own.py:network", "train.transfer.start_from=runs/before", f"train.plan={plan}")
    submit(capsys, *words, "train.strategy=spatial", "--ranks-per-node", "2")
    spec, _ = slurm.started[0]
    assert spec.binds == () and spec.readonly == (f"{study}/shards", f"{plan}", f"{tmp_path}/own.py")
    assert app.run(["submit", "mine.yaml", *words, "train.strategy=spatial", "--nodes", "3"]) == 2
    assert "is a plan for 2 rank(s), and 3 would train" in " ".join(capsys.readouterr().err.split())


def test_a_run_of_another_configuration_is_refused_before_it_waits_in_a_queue(slurm, tmp_path, capsys):
    submit(capsys)
    kept = tmp_path / slurm.started[0][0].tasks[0][-2]
    (tmp_path / "runs" / "mine").mkdir()
    (tmp_path / "runs" / "mine" / "config.yaml").write_text(kept.read_text())
    assert app.run(["submit", "mine.yaml", "train.seed=5"]) == 2
    assert "train.seed was 0 and is 5 now" in capsys.readouterr().err
    slurm.becomes("4711", "TIMEOUT", ended=5.0)
    assert app.run(["submit", "mine.yaml", "train.epochs=100"]) == 0


WRITES = """
import os, sys
from pathlib import Path
from trainer.leases import claims, lease_taking

with lease_taking.take(Path("runs/mine"), claims.myself(os.environ)):
    print("taken", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def writing(folder: Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has taken the lease on the run folder, as each training does first."""
    line = [sys.executable, "-c", WRITES]
    environment = {**os.environ, **environment}
    pipe = subprocess.PIPE
    with subprocess.Popen(line, cwd=folder, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "taken\n"
            yield process
        finally:
            process.kill()


def test_a_run_that_is_trained_by_hand_is_refused_until_its_process_has_ended_or_died(
    slurm, tmp_path, capsys
):
    for dies in (False, True):
        with writing(tmp_path) as process:
            assert app.run(["submit", "mine.yaml"]) == 2
            named = f"start {1 + dies}, on {socket.gethostname()} (pid {process.pid})."
            said = capsys.readouterr().err
            assert f"{tmp_path}/runs/mine: another process writes this run: {named}" in said
            assert slurm.started == [] and not list((tmp_path / "runs").glob(".submitted-*"))
            assert not (tmp_path / "home" / "jobs").exists()
            if dies:
                process.kill()
            else:
                (tmp_path / "runs" / "mine" / "kept").touch()  # else nothing of that start would be left
                process.communicate()
    assert (tmp_path / "runs" / "mine" / ".writers").exists()
    assert submit(capsys) == ["4711"]


def test_a_job_may_be_started_again_and_another_may_wait_for_it_while_it_writes(slurm, tmp_path, capsys):
    submit(capsys)
    slurm.becomes("4711", "RUNNING", started=5.0)
    with writing(tmp_path, SLURM_JOB_ID="4711"):
        assert app.run(["requeue", "4711"]) == 0
        assert submit(capsys, "--after", "4711") == ["4712"]


@pytest.mark.parametrize("command", ["show", "logs", "cancel", "requeue", "hold", "release", "defer", "wait"])
@pytest.mark.parametrize("identity", ["4711", "new-1", "4711_2", "--", "4711;ls", "", "4" * 40, "²"])
def test_ids_that_name_nothing_are_refused(slurm, capsys, command, identity):
    assert app.run([command, identity]) == 2
    assert capsys.readouterr().err


def test_a_task_that_an_array_does_not_have_is_refused(slurm, capsys):
    (job,) = submit(capsys)
    assert app.run(["show", f"{job}_0"]) == 2
    assert "It is not an array" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("state", "code", "expected"),
    [
        ("COMPLETED", 0, 0),
        ("FAILED", 3, 3),
        ("CANCELLED", None, 1),
        ("TIMEOUT", None, 1),
        ("FAILED", 137, 137),
    ],
)
def test_wait_ends_as_the_job_did(slurm, capsys, state, code, expected):
    (job,) = submit(capsys)
    slurm.becomes(job, state, exit_code=code, ended=5.0, hosts=("n2",))
    capsys.readouterr()
    assert app.run(["wait", job]) == expected
    assert f"4711 {state}: n2" in capsys.readouterr().err


def test_wait_gives_up_when_told_and_ctrl_c_leaves_the_job_alone(slurm, capsys, monkeypatch):
    (job,) = submit(capsys)
    assert app.run(["wait", job, "--timeout", "0"]) == 124
    assert "4711 had not ended after" in capsys.readouterr().err

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupted)
    assert app.run(["wait", job]) == 130
    assert "interrupted; the job goes on" in capsys.readouterr().err
    assert slurm.told == []


def test_cancelling_is_told_once_and_a_typo_changes_nothing(slurm, capsys):
    first, second = submit(capsys), submit(capsys, "name=other")
    assert app.run(["cancel", *first, "47111"]) == 2
    assert slurm.told == []
    assert app.run(["cancel", *first, *second]) == 0
    assert capsys.readouterr().out == "4711 cancelled\n4712 cancelled\n"
    assert app.run(["cancel", *first]) == 0
    assert "had already ended: CANCELLED" in capsys.readouterr().out
    assert slurm.told == [("cancel", "4711", None), ("cancel", "4712", None)]
    assert app.run(["show", *first]) == 0
    assert "cancel asked for by" in capsys.readouterr().out


def test_a_waiting_task_that_slurm_forgets_when_it_is_cancelled_is_cancelled(slurm, capsys, monkeypatch):
    monkeypatch.setattr("cingulum.cli.submission_check.crossval", lambda *words, **more: None)
    (job,) = submit(capsys, "--folds", "3")
    monkeypatch.setattr(slurm, "cancel", lambda external, task: slurm.jobs[external].pop(task))
    assert app.run(["cancel", f"{job}_1"]) == 0
    assert capsys.readouterr().out == "4711_1 cancelled\n"
    assert [state.state for state in Store().get(job).tasks] == ["PENDING", "CANCELLED", "PENDING"]


def test_a_failed_job_is_started_again_and_a_completed_one_is_not(slurm, capsys):
    (job,) = submit(capsys)
    slurm.becomes(job, "FAILED", exit_code=1, ended=5.0)
    failures = Path(Store().get(job).folder) / "failures"
    failures.write_text("then\t1\tn2\twhy\n")
    assert told(capsys, "requeue", job)["state"] == "PENDING"  # type: ignore[index]
    assert not failures.exists()  # as many failures are allowed as at first
    assert slurm.told == [("requeue", "4711", None)]
    slurm.becomes(job, "COMPLETED", exit_code=0, restarts=1, ended=9.0)
    assert app.run(["requeue", job]) == 2
    assert "nothing left to do" in capsys.readouterr().err


def test_what_waits_is_held_let_go_and_put_last_and_its_history_says_who(slurm, capsys, monkeypatch):
    monkeypatch.setattr("cingulum.cli.submission_check.crossval", lambda *words, **more: None)
    (array,), (job,) = submit(capsys, "--folds", "3"), submit(capsys, "name=other")
    slurm.becomes(job, "PENDING", reason="JobHeldUser")
    assert app.run(["hold", f"{array}_1", job]) == 0
    assert capsys.readouterr().out == "4711_1 held (PENDING)\n4712 held (PENDING: JobHeldUser)\n"
    assert app.run(["defer", job]) == 2  # Slurm would let it start
    assert "4712 is held" in capsys.readouterr().err
    assert told(capsys, "release", job)["jobs"][0]["id"] == job  # type: ignore[index]
    slurm.becomes(job, "PENDING", reason="Priority")
    assert app.run(["defer", job]) == 0 == app.run(["defer", job, "--by", "0"])
    said = capsys.readouterr().out
    assert "4712 has 1000 less priority (" in said and "4712 has its first priority (" in said
    orders = [("hold", "4711", 1), ("hold", "4712", None), ("release", "4712", None)]
    orders += [("nice 1000", "4712", None), ("nice 0", "4712", None)]
    assert slurm.told == orders
    assert app.run(["show", job]) == 0
    assert "nice 1000 asked for by" in capsys.readouterr().out
    acted = Store().actions(job)
    assert [one.action for one in acted] == ["submit", "hold", "release", "nice 1000", "nice 0"]
    assert all(one.who.endswith(" (command line)") for one in acted)


def test_of_an_array_it_is_told_how_many_tasks_are_held_and_how_many_had_ended(slurm, capsys, monkeypatch):
    monkeypatch.setattr("cingulum.cli.submission_check.crossval", lambda *words, **more: None)
    (array,) = submit(capsys, "--folds", "4")
    slurm.becomes(array, "COMPLETED", task=0, exit_code=0, ended=5.0)
    assert app.run(["hold", array]) == 0 == app.run(["defer", array])
    slurm.becomes(array, "RUNNING", task=1, started=5.0)
    assert app.run(["release", array]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "4711 held (PENDING): 3 of 4 tasks, 1 had ended",
        "4711 has 1000 less priority (PENDING): 3 of 4 tasks, 1 had ended",
        "4711 released (RUNNING): 2 of 4 tasks, 1 running, 1 had ended",
    ]


def test_of_jobs_of_which_one_does_not_wait_none_is_held(slurm, capsys, monkeypatch):
    (first,), (second,) = submit(capsys), submit(capsys, "name=other")
    slurm.becomes(second, "RUNNING", started=5.0)
    assert app.run(["hold", first, second]) == 2
    assert "does not wait: it is RUNNING" in capsys.readouterr().err and slurm.told == []
    assert (
        app.run(["defer", first, "--by", "-1"])
        == 2
        == app.run(["defer", first, "--by", str(actions.MOST_NICE + 1)])
    )
    assert slurm.told == []

    # A launcher that refuses is named, with what was done before.
    slurm.becomes(second, "PENDING")

    def refuses(external: str, task: int | None = None) -> None:
        if external == second:
            raise LauncherError("Slurm says no", cure="Ask it.")

    monkeypatch.setattr(slurm, "hold", refuses)
    capsys.readouterr()
    assert app.run(["hold", first, second]) == 1
    assert "Ask it. Before it: 4711 held." in capsys.readouterr().err


def test_logs_are_printed_as_they_are(slurm, capfdbinary):
    assert app.run(["submit", "mine.yaml"]) == 0
    job = "4711"
    folder = Path(Store().get(job).folder)
    assert app.run(["logs", job]) == 0
    assert b"no output yet" in capfdbinary.readouterr().err
    (folder / "out-0.log").write_bytes(b"one\n\xff\xfe\ntwo\n")
    assert app.run(["logs", job]) == 0
    assert capfdbinary.readouterr().out == b"one\n\xff\xfe\ntwo\n"
    slurm.becomes(job, "COMPLETED", exit_code=0, ended=5.0)
    assert app.run(["logs", job, "--follow"]) == 0
    assert capfdbinary.readouterr().out == b"one\n\xff\xfe\ntwo\n"


def test_failed_starts_are_shown_with_their_reason(slurm, capsys):
    (job,) = submit(capsys)
    folder = Path(Store().get(job).folder)
    (folder / "failures").write_text("2026-11-21T17:00:00+0000\t137\trank 2 @ n3\twas killed by signal 9\n")
    (folder / "out-0.log").write_text("".join(f"line {k}\n" for k in range(30)))
    slurm.becomes(job, "FAILED", exit_code=137, reason="NonZeroExitCode", ended=5.0)
    assert app.run(["show", job]) == 0
    shown = capsys.readouterr().out
    assert "rank 2 @ n3" in shown and "exit code 137: NonZeroExitCode" in shown
    assert "line 29" in shown and "line 19" not in shown


def test_a_launcher_that_is_silent_is_named_and_what_was_known_is_shown(slurm, capsys):
    (job,) = submit(capsys)
    slurm.refuses = "states"
    capsys.readouterr()
    assert app.run(["jobs"]) == 0
    shown = capsys.readouterr()
    assert "slurm did not answer" in shown.err and "slurmctld is away" in shown.err and job in shown.out


def test_jobs_that_ended_long_ago_are_listed_when_asked_for(slurm, capsys, monkeypatch):
    (job,) = submit(capsys)
    slurm.becomes(job, "COMPLETED", exit_code=0, started=time.time() - 9, ended=time.time())
    assert len(told(capsys, "jobs")["jobs"]) == 1  # type: ignore[index]
    later = time.time() + 2 * 86400
    monkeypatch.setattr(time, "time", lambda: later)
    assert told(capsys, "jobs")["jobs"] == []  # type: ignore[index]
    assert len(told(capsys, "jobs", "--all")["jobs"]) == 1  # type: ignore[index]
    assert app.run(["jobs", "--watch", "--json"]) == 2
