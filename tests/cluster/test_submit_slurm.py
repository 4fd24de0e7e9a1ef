"""`cingulum submit` and the commands around it, on a real Slurm of three hosts."""

from __future__ import annotations

import csv
import itertools
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobs.testbed import Testbed
from trainer.data.importing.import_request import ImportRequest
from trainer.data.importing.importing import run
from trainer.data.phantom.cohort import make_cohort
from trainer.data.shards.index_reading import read_index

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "parallel"))
from tiny_runs import make_shards, result, write_config  # noqa: E402

CINGULUM = [sys.executable, "-m", "cingulum"]
HOSTILE = "-x $(touch INJECTED) `touch INJECTED`; 'a' \"b\" \n#SBATCH --nodes=9\nä|b"


IN_QUEUE = """
import subprocess, sys
from jobs.requests import actions, known
from jobs.store.store import Store

store = Store()
def act(what, *more):
    job, task = known.current(store, sys.argv[1], warn=print)
    state = what(store, job, task, *more, who="me").tasks[task]
    return f"{state.state} {state.reason}"

print(act(actions.hold))
try:
    act(actions.nice, 1000)
except actions.NoQueueError as error:
    print(error.code)
act(actions.release)
act(actions.nice, 1000)
shown = subprocess.run(["scontrol", "show", "job", sys.argv[1]], capture_output=True, text=True).stdout
print(next(word for word in shown.split() if word.startswith("Nice=")))
"""


# An array of which the first task ends at once, the second runs and the others wait.
ARRAY = """
from jobs.schedulers.slurm.launcher import Slurm
from jobs.sites import HERE
from jobs.spec import JobSpec
from jobs.store.store import Store
from jobs.requests.submission import submit

tasks = (("true",), *[("sleep", "300")] * 3)
spec = JobSpec("mine", "command", tasks, {folder!r}, parallel=False, at_once=1)
print(submit(Store(), Slurm(), spec, HERE).label)
"""


@dataclass(frozen=True)
class Study:
    """A folder of a user's own that all hosts see, with shards in it."""

    cluster: Testbed
    folder: Path

    def environment(self) -> dict[str, str]:
        return {
            "PYTHONPATH": str(ROOT),
            "CINGULUM_HOME": str(self.folder / "home"),
            "XDG_CONFIG_HOME": str(self.folder / "settings"),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "COLUMNS": "80",
        }

    def run(self, *words: object, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        line = [*CINGULUM, *map(str, words)]
        return self.cluster.exec(
            "ctl", line, timeout=timeout, cwd=self.folder, environment=self.environment()
        )

    def begin(self, *words: object) -> subprocess.Popen[str]:
        line = self.cluster.argv(
            "ctl", [*CINGULUM, *map(str, words)], cwd=self.folder, environment=self.environment()
        )
        return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def told(self, *words: object, timeout: float = 120) -> Any:
        """What a command prints with --json."""
        done = self.run(*words, "--json", timeout=timeout)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def submit(self, *words: object) -> list[str]:
        """Ids of the submitted jobs."""
        return [job["id"] for job in self.told("submit", *words)["jobs"]]

    def job(self, identity: str) -> dict[str, Any]:
        return self.told("show", identity)

    def until(self, what: str, condition: Callable[[], Any], seconds: float = 90) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"{what}: not within {seconds} s; {self.run('jobs').stdout}"
            time.sleep(0.2)

    def in_queue(self, identity: str) -> set[str]:
        """States of its tasks as Slurm tells them, for less of a core than a command of ours takes."""
        return set(self.slurm("squeue", "-h", "-r", "-t", "all", "-j", identity, "-o", "%T").split())

    def until_state(self, identity: str, state: str, seconds: float = 90) -> None:
        self.until(f"{identity} to be {state}", lambda: self.in_queue(identity) == {state}, seconds)
        assert self.job(identity)["state"] == state

    def until_saved(self, name: str) -> None:
        checkpoints = self.folder / "runs" / name / "checkpoints"
        self.until(f"a checkpoint of {name}", lambda: any(checkpoints.glob("step-*")))

    def slurm(self, *line: str) -> str:
        done = self.cluster.exec("ctl", list(line))
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="session")
def shards_of_all(tmp_path_factory) -> Path:
    return make_shards(tmp_path_factory.mktemp("shards") / "set")


@pytest.fixture
def study(cluster, tmp_path, shards_of_all) -> Study:
    changes = {"train__global_batch": 6, "train__threads": 1, "train__epochs": 1, "data__split": {"folds": 2}}
    write_config(tmp_path, shards_of_all, "mine", **changes)
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), "runs": "runs"}))
    return Study(cluster, tmp_path)


@pytest.mark.slow
def test_images_are_imported_trained_on_over_two_hosts_evaluated_and_reported(study):
    make_cohort(study.folder / "images", 24, 16, groups=("AD", "NC"))
    options = ["--import", "images", "--import-options", "--label diagnosis --size 16", "--nodes", 2]
    options += ["--name", HOSTILE, "--then", "evaluate,report", "--time", "10"]
    chain = study.submit("mine.yaml", "data.shards=imported", *options)
    train, report = chain[1], chain[3]
    assert [study.job(job)["after"] for job in chain] == [[], *([job] for job in chain[:-1])]
    # What is edited now comes too late for jobs in the queue.
    (study.folder / "mine.yaml").write_text("name: [broken")
    following = study.begin("logs", train, "--follow")
    waited = study.run("wait", report, timeout=280)
    assert waited.returncode == 0, (waited.stderr, study.run("logs", train).stdout)
    assert f"{report} COMPLETED" in waited.stderr
    printed, said = following.communicate(timeout=60)
    assert following.returncode == 0, said
    assert "epoch   1" in printed and "report: runs/mine/report.html" in printed

    run = study.folder / "runs" / "mine"
    assert json.loads((run / "run.json").read_text())["hosts"] == ["n1", "n2"]
    assert result(run)["world_size"] == 2
    assert (run / "report.html").is_file() and (run / "evaluation" / "test.csv").is_file()
    jobs = [study.job(job) for job in chain]
    assert [job["kind"] for job in jobs] == ["import", "train", "evaluate", "report"]
    ended = [(task["state"], task["exit_code"]) for job in jobs for task in job["tasks"]]
    assert ended == [("COMPLETED", 0)] * 4
    spans = [(task["started"], task["ended"]) for job in jobs for task in job["tasks"]]
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))

    shown = study.job(train)
    assert (shown["state"], shown["exit_code"], shown["name"]) == ("COMPLETED", 0, HOSTILE)
    (task,) = shown["tasks"]
    assert task["hosts"] == ["n1", "n2"] and task["started"] < task["ended"]
    states = [change["state"] for change in shown["changes"]]
    assert states[0] == "SUBMITTING" and states[-1] == "COMPLETED"
    assert not list(study.folder.rglob("INJECTED")) and not Path("INJECTED").exists()
    assert Path(shown["job_folder"]).stat().st_mode & 0o077 == 0
    private = [
        path for path in Path(shown["job_folder"]).iterdir() if path.name in ("spec.json", "job.sbatch")
    ]
    assert [path.stat().st_mode & 0o777 for path in private] == [0o600, 0o600]


@pytest.mark.slow
def test_parts_of_an_import_are_prepared_side_by_side_and_one_that_is_killed_again(study):
    made = study.run(
        "phantom", "cohort", "--subjects", 4, "--size", 48, "--groups", "AD,NC", "--layout", "raw"
    )
    assert made.returncode == 0, made.stderr
    source, how = "cohort/sourcedata/raw", "--label diagnosis --size 16 --prepare linear"
    options = ["--import", source, "--import-options", how, "--import-tasks", 2, "--time", "10"]
    parts, whole, train = study.submit("mine.yaml", "data.shards=imported", *options)
    kept = study.folder / "imported" / ".import" / "images"
    study.until("a scan to be prepared", lambda: any(kept.glob("*.npz")), 120)
    for host in ("n1", "n2", "n3"):  # the newest: its supervisor has the same words
        study.cluster.exec(host, ["pkill", "-9", "-n", "-f", "--", "--part=1/2"])
    waited = study.run("wait", whole, timeout=280)
    assert waited.returncode == 0, (waited.stderr, study.run("logs", parts).stdout)
    study.run("cancel", train)
    tasks = study.job(parts)["tasks"]
    assert [task["state"] for task in tasks] == ["COMPLETED"] * 2
    assert sorted(task["restarts"] for task in tasks) == [0, 1]
    here = run(
        ImportRequest(source=study.folder / source, target=study.folder / "here", size=16, prepare="linear")
    )
    assert read_index(study.folder / "imported").content_hash == here.content_hash


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [1, 2])
def test_folds_and_seeds_train_as_an_array_and_are_pooled_by_the_job_after_it(study, seeds):
    asked = ["--folds", 2, "--seeds", seeds]
    array, pooled = study.submit("mine.yaml", *asked, "--then", "report", "--name", "cv")
    listed = study.slurm("squeue", "--noheader", "--array", "--jobs", array, "--format=%i %j").splitlines()
    assert sorted(listed) == [f"{array}_{task} cv" for task in range(2 * seeds)]
    waited = study.run("wait", pooled, timeout=250)
    assert waited.returncode == 0, (waited.stderr, study.run("logs", array).stdout)
    tasks = study.job(array)["tasks"]
    assert [(task["state"], task["exit_code"]) for task in tasks] == [("COMPLETED", 0)] * 2 * seeds
    folder = study.folder / "runs" / "mine"
    summary = json.loads((folder / "crossval.json").read_text())
    assert len(set(summary["seeds"])) == seeds
    trained = [(run["fold"], run["seed"]) for run in summary["per_fold"]]
    assert sorted(trained) == sorted(itertools.product((0, 1), summary["seeds"]))
    assert len({run["best_weights_sha256"] for run in summary["per_fold"]}) == 2 * seeds
    # Every volume is held out once per seed, and the pooled figure is the mean over the seeds.
    rows = list(csv.DictReader((folder / "predictions.csv").read_text().splitlines()))
    assert Counter(row["seed"] for row in rows) == {str(seed): 32 for seed in summary["seeds"]}
    assert len({(row["seed"], row["subject"]) for row in rows}) == 32 * seeds
    of_seeds = [seed["metrics"]["auc"] for seed in summary["per_seed"]]
    assert summary["pooled"]["auc"]["value"] == pytest.approx(sum(of_seeds) / seeds)
    assert (folder / "report.html").is_file()
    everything = study.run("logs", array)
    assert f"==> {array}_0 <==" in everything.stdout and f"==> {array}_1 <==" in everything.stdout
    one = study.run("logs", f"{array}_1")
    assert one.stdout == study.run("logs", array, "--task", 1).stdout and "==>" not in one.stdout
    refused = study.run("logs", array, "--follow")
    assert refused.returncode == 2 and f"{array}_0" in refused.stderr
    # A later cross-validation finds all of it done.
    again = study.run("crossval", "mine.yaml", *asked, "--dry-run", "--json")
    assert [run["state"] for run in json.loads(again.stdout)["runs"]] == ["finished"] * 2 * seeds


def test_a_chain_ends_where_one_of_its_jobs_fails(study):
    (study.folder / "images").mkdir()
    importing, train, report = study.submit(
        "mine.yaml", "data.shards=new", "--import", "images", "--then", "report", "--time", "5"
    )
    waited = study.run("wait", importing)
    assert waited.returncode == 2, waited.stderr  # as the import itself ended: bad input
    study.until_state(train, "CANCELLED")
    study.until_state(report, "CANCELLED")
    shown = study.run("show", importing)
    assert "exit code 2" in shown.stdout and "error: " in shown.stdout
    assert study.run("wait", report).returncode == 1
    assert study.run("submit", "mine.yaml", "--after", importing).returncode == 2


def test_tasks_and_jobs_are_cancelled_and_their_followers_with_them(study):
    # Enough epochs that, on a busy machine, the first task has not completed before it is cancelled.
    words = ["train.epochs=400", "--folds", 2, "--at-once", 1, "--then", "report"]
    array, pooled = study.submit("mine.yaml", *words)
    study.until("the first task to run", lambda: study.in_queue(array) == {"RUNNING", "PENDING"})
    assert [task["state"] for task in study.job(array)["tasks"]] == ["RUNNING", "PENDING"]
    # As the service does it: held, let go again, and only then behind all others.
    line = [sys.executable, "-c", IN_QUEUE, f"{array}_1"]
    told = study.cluster.exec("ctl", line, cwd=study.folder, environment=study.environment(), timeout=120)
    assert told.stdout.splitlines() == ["PENDING JobHeldUser", "NO_QUEUE", "Nice=1000"], told.stderr
    # Slurm forgets that it was held when it looks at its queue the next time.
    study.until("the second task to be let go", lambda: "Held" not in study.job(array)["tasks"][1]["reason"])
    done = study.run("cancel", f"{array}_1")
    assert done.stdout == f"{array}_1 cancelled\n", done.stderr
    assert [task["state"] for task in study.job(array)["tasks"]] == ["RUNNING", "CANCELLED"]
    assert study.run("cancel", array).returncode == 0
    study.until_state(array, "CANCELLED")
    study.until_state(pooled, "CANCELLED")
    again = study.run("cancel", array)
    assert again.returncode == 0 and "had already ended" in again.stdout
    assert study.slurm("squeue", "--noheader").strip() == ""
    table = study.run("jobs").stdout
    assert all(len(line) <= 80 for line in table.splitlines()), table
    assert "CANCELLED" in table and pooled in table


def test_of_an_array_the_rest_is_held_and_what_was_cancelled_outlives_the_store(cluster, tmp_path):
    study = Study(cluster, tmp_path)
    line = [sys.executable, "-c", ARRAY.format(folder=str(tmp_path))]
    made = cluster.exec("ctl", line, cwd=tmp_path, environment=study.environment(), timeout=60)
    array = made.stdout.strip()
    study.until("two tasks to begin", lambda: study.in_queue(array) == {"COMPLETED", "RUNNING", "PENDING"})
    share = ": 2 of 4 tasks, 1 running, 1 had ended\n"
    for order, done in (("hold", "held"), ("release", "released"), ("defer", "has 1000 less priority")):
        said = study.run(order, array)
        assert said.returncode == 0, said.stderr
        assert said.stdout.startswith(f"{array} {done} (RUNNING") and said.stdout.endswith(share)
    assert study.run("hold", f"{array}_0").returncode == 2
    # Slurm forgets at once that there was a fourth task.
    assert study.run("cancel", f"{array}_3").returncode == 0 == study.run("cancel", array).returncode
    study.until("the array to end", lambda: not {"RUNNING", "COMPLETING"} & study.in_queue(array))
    ended = ["COMPLETED", "CANCELLED", "CANCELLED", "CANCELLED"]
    assert [task["state"] for task in study.job(array)["tasks"]] == ended
    for file in (tmp_path / "home").glob("jobs.db*"):
        file.unlink()
    (job,) = study.told("jobs", "--all")["jobs"]
    assert (job["state"], [task["state"] for task in job["tasks"]]) == ("CANCELLED", ended)


@pytest.mark.slow
def test_a_running_job_saves_is_started_again_and_goes_on(study):
    (job,) = study.submit("mine.yaml", "train.epochs=60", "checkpoint.every_steps=1")
    study.until_saved("mine")

    def shown(job: str) -> str:
        return study.slurm("scontrol", "show", "job", "--oneliner", job)

    done = study.run("requeue", job)
    assert "saves, and starts again" in done.stdout, done.stderr
    study.until(f"{job} to wait again", lambda: "Restarts=1 " in shown(job))
    assert study.job(job)["tasks"][0]["restarts"] == 1
    waiting = study.run("wait", job, "--timeout", 1)
    assert waiting.returncode == 124 and "goes on" in waiting.stderr

    def started_now() -> bool:
        # Slurm holds a job back for two minutes, and refuses a start in the same second.
        study.cluster.exec("ctl", ["scontrol", "update", f"jobid={job}", "StartTime=now"])
        return study.in_queue(job) == {"RUNNING"}

    study.until(f"{job} to run again", started_now)
    log = Path(study.job(job)["tasks"][0]["log"])
    study.until(f"{job} to go on", lambda: "resumed from runs/mine/checkpoints/step-" in log.read_text())
    assert study.run("cancel", job).returncode == 0
    study.until_state(job, "CANCELLED")
    # What was cancelled may be started again, too.
    assert "starts again" in study.run("requeue", job).stdout
    assert study.job(job)["state"] in ("PENDING", "REQUEUED", "CONFIGURING", "RUNNING")


def test_what_slurm_would_refuse_is_told_before_anything_is_submitted(study):
    done = study.run("submit", "mine.yaml", "train.global_batch=9", "--nodes", 9)
    assert done.returncode == 1
    assert "Requested node configuration is not available" in done.stderr and "sinfo" in done.stderr
    assert study.told("jobs", "--all")["jobs"] == []
    assert not (study.folder / "runs").exists()


def test_a_controller_that_is_away_is_named_and_nothing_is_lost(study):
    (job,) = study.submit("mine.yaml", "--time", "5")
    study.cluster.kill_controller()
    try:
        listed = study.run("jobs")
        assert listed.returncode == 0 and job in listed.stdout
        assert "slurm did not answer" in listed.stderr and "Unable to contact" in listed.stderr
        refused = study.run("submit", "mine.yaml", "name=other")
        assert refused.returncode == 1 and "scontrol ping" in refused.stderr
        assert study.run("cancel", job).returncode == 1
    finally:
        study.cluster.start_controller()
    assert [found["id"] for found in study.told("jobs")["jobs"]] == [job]


def test_a_dry_run_shows_all_and_touches_nothing(study):
    before = sorted(study.folder.rglob("*"))
    done = study.run("submit", "mine.yaml", "--nodes", 3, "--then", "report", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "#SBATCH --nodes=3" in done.stdout and "\nsbatch --parsable --comment=cingulum:" in done.stdout
    assert "'--dependency=afterok:<id of mine>'" in done.stdout
    plan = study.told("submit", "mine.yaml", "--nodes", 3, "--then", "report", "--dry-run")
    script = plan["jobs"][0]["files"]["job.sbatch"]
    assert study.cluster.exec("ctl", ["sbatch", "--test-only"], stdin=script).returncode == 0
    assert sorted(study.folder.rglob("*")) == before
    assert study.slurm("squeue", "--noheader").strip() == ""


def test_jobs_that_left_the_queue_are_found_in_the_accounting(cluster_with_accounting, tmp_path):
    script = tmp_path / "job.sbatch"
    script.write_text("#!/bin/bash\nexit $((SLURM_ARRAY_TASK_ID * 3))\n")
    token = "0123456789abcdef"  # noqa: S105
    line = ["sbatch", "--parsable", f"--comment=cingulum:{token}", "--array=0-1", f"--output={os.devnull}"]
    submitted = cluster_with_accounting.exec("ctl", [*line, str(script)], cwd=tmp_path)
    job = submitted.stdout.strip()
    assert job.isdigit(), submitted.stderr
    # A queue that has forgotten every job, and the real sacct.
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "squeue").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "squeue").chmod(0o755)
    ask = (
        "import dataclasses, json; from jobs.schedulers.slurm.launcher import Slurm; slurm = Slurm();"
        f"states = slurm.states([{job!r}, '99999']);"
        f"print(json.dumps([slurm.find({token!r}), slurm.find('f' * 16),"
        " {job: [[s.state, s.exit_code] for s in found] for job, found in states.items()}]))"
    )
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    deadline = time.monotonic() + 60
    while True:
        done = cluster_with_accounting.exec(
            "ctl", [sys.executable, "-c", ask], environment={"PYTHONPATH": str(ROOT), "PATH": path}
        )
        assert done.returncode == 0, done.stderr
        found, missing, states = json.loads(done.stdout)
        if states.get(job) == [["COMPLETED", 0], ["FAILED", 3]]:
            break
        assert time.monotonic() < deadline, f"the accounting never said so: {done.stdout}"
        time.sleep(0.2)
    assert found == job and missing is None and list(states) == [job]
