"""What users do with jobs through the service: checked, done once, and told in the jobs' history."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
import yaml
from served import checks, client_of, code
from starlette.testclient import TestClient

from cingulum.cli.app import command_line
from cingulum.service import acting
from jobs.local import attended_files
from jobs.local.docker import Docker
from jobs.requests import actions, known, once, submitting
from jobs.requests.submission_options import SubmissionOptions
from jobs.schedulers import registry
from jobs.schedulers.base import TaskState
from jobs.store.store import Store
from trainer.errors import LauncherError, StoreError

CONFIG = yaml.safe_dump({"name": "mine", "data": {"shards": "shards"}, "train": {"global_batch": 12}})
JOBS = "/api/v1/jobs"


@pytest.fixture
def asked(store, slurm, tmp_path, monkeypatch) -> TestClient:
    """A client of a service that runs in a folder with a shard set."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "index.json").write_text("{}")
    return client_of(store)


def keyed(key: str) -> dict[str, str]:
    return {"Idempotency-Key": f"a-key-of-{key}"}


def files() -> list[Path]:
    return sorted(Path("runs").rglob("*"))


def test_command_line_form_and_api_have_every_option_of_a_submission(asked):
    options = set(SubmissionOptions.model_fields)
    command = {parameter.name for parameter in command_line().commands["submit"].params}
    assert options | {"config", "overrides", "private", "dry_run", "as_json"} == command
    schema = asked.get(f"{JOBS}/schema").json()["submission"]["properties"]
    assert options | {"config", "overrides"} == set(schema)
    page = asked.get("/submit").text
    assert all(f'name="{name}"' in page for name in options)
    assert 'name="grace_s" placeholder="the site&#39;s, else 120" value=""' in page
    assert 'name="after"' in page and page.count("data-list") == 2


def test_a_check_shows_what_would_be_done_and_does_nothing(asked, store, slurm):
    said = asked.post(f"{JOBS}/check", json={"config": CONFIG, "then": "report", "nodes": 2}).json()
    assert said["error"] is None and "epochs: 80" in said["config"] and said["queue"] == []
    assert [job["kind"] for job in said["jobs"]] == ["train", "report"]
    assert said["predicted"]["seconds"] is None and "--profile FILE" in said["predicted"]["said"]
    train, report = said["jobs"]
    assert (
        train["files"] == {"job.sbatch": f"#!/bin/bash\n# {'0' * 16}\n"} and train["command"][0] == "sbatch"
    )
    assert train["resources"]["nodes"] == 2 and report["after"] == ["<id of mine>"]
    with_queue = asked.post(f"{JOBS}/check?queue=true", json={"config": CONFIG}).json()
    assert with_queue["queue"] == ["train to start tomorrow"]
    slurm.refuses = "preflight"
    refused = asked.post(f"{JOBS}/check?queue=true", json={"config": CONFIG}).json()
    assert (refused["error"]["code"], refused["error"]["cure"]) == ("LAUNCHER_FAILED", "Mend the site.")
    assert len(refused["jobs"]) == 1  # what was found before
    assert store.is_empty and slurm.started == [] and files() == []


@pytest.mark.parametrize(
    ("asks", "kind", "words", "key"),
    [
        ({"config": "name: mine\ntrain: {epoch: 3}\n"}, "CONFIG_INVALID", "configuration: ", None),
        (
            {"config": CONFIG, "overrides": ["train.epochs=0"]},
            "CONFIG_INVALID",
            "command line: train.epochs=0: must be at least 1",
            "train.epochs",
        ),
        ({"config": "name: [", "nodes": 1}, "CONFIG_INVALID", "configuration: is not YAML: line 1", None),
        ({"config": CONFIG, "nodes": 5}, "CONFIG_INVALID", "cannot be shared evenly", None),
        ({"config": CONFIG, "memory": "much"}, "JOB_UNUSABLE", "much", None),
        ({"config": CONFIG, "site": "nowhere"}, "JOB_UNUSABLE", "nowhere", None),
        (
            {"config": CONFIG, "source": "images", "import_options": "--colour red"},
            "JOB_UNUSABLE",
            "--colour",
            None,
        ),
        ({"config": CONFIG, "source": "images", "import_options": "--help"}, "JOB_UNUSABLE", "--help", None),
        ({"config": "data: {shards: none}\nname: x\n"}, "CONFIG_INVALID", "is not a shard set", None),
        ({"config": CONFIG, "launcher": "mpirun", "image": "a.sif"}, "JOB_UNUSABLE", "no image", None),
    ],
)
def test_what_is_wrong_is_told_with_its_place_and_nothing_is_submitted(
    asked, store, slurm, asks, kind, words, key
):
    said = asked.post(f"{JOBS}/check", json=asks).json()["error"]
    assert said["code"] == kind and words in said["message"] and "cingulum-" not in said["message"]
    assert key is None or said["key"] == key
    refused = asked.post(JOBS, json=asks)
    assert code(refused) == (400, kind) and refused.json()["error"]["message"] == said["message"]
    assert store.is_empty and slurm.started == [] and files() == []


def test_a_bomb_of_aliases_and_a_text_without_end_are_refused_at_once(asked):
    bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 10)}]\n" for n in range(8)
    )
    said = asked.post(f"{JOBS}/check", json={"config": bomb}).json()["error"]
    assert said["code"] == "CONFIG_INVALID" and "more than 10,000 values" in said["message"]
    deep = asked.post(f"{JOBS}/check", json={"config": "[" * 5000}).json()["error"]
    assert "more than 32 deep" in deep["message"]
    assert code(asked.post(f"{JOBS}/check", json={"config": "x" * 60_001}))[0] == 422
    assert code(asked.post(JOBS, json={"config": "x" * 70_000}))[0] == 413
    assert code(asked.post(JOBS, json={"config": CONFIG, "folder": "/"}))[0] == 422


def test_a_submission_is_in_the_history_and_by_its_key_it_is_done_once(asked, store, slurm):
    first = asked.post(JOBS, json={"config": CONFIG, "then": "report"}, headers=keyed("one"))
    assert first.status_code == 201
    assert [job["id"] for job in first.json()["jobs"]] == ["4711", "4712"]
    assert [(one.action, one.who) for one in store.actions("4711")] == [
        ("submit", "me (service, own socket)")
    ]
    again = asked.post(JOBS, json={"config": CONFIG, "then": "report"}, headers=keyed("one"))
    assert (again.status_code, again.json()) == (201, first.json())
    assert [spec.kind for spec, _ in slurm.started] == ["train", "report"]
    assert code(asked.post(JOBS, json={"config": CONFIG}, headers=keyed("one"))) == (409, "KEY_USED")
    # Without a key it is asked for anew, and the run has its job already.
    assert "uses the run folder" in asked.post(JOBS, json={"config": CONFIG}).json()["error"]["message"]


def test_a_chain_that_was_cut_is_completed_and_no_job_of_it_is_started_twice(asked, store, slurm):
    slurm.refuses = "report"
    ask = {"json": {"config": CONFIG, "then": "evaluate,report"}, "headers": keyed("chain")}
    failed = asked.post(JOBS, **ask)
    assert code(failed) == (502, "LAUNCHER_FAILED") and "4711 4712" in failed.json()["error"]["cure"]
    slurm.refuses = None
    again = asked.post(JOBS, **ask).json()["jobs"]
    # What the launcher refused stays refused: another key asks again.
    assert [job["state"] for job in again] == ["PENDING", "PENDING", "LOST"]
    assert len(slurm.started) == 2


@pytest.mark.parametrize("at", ["before the first", "between", "before the answer is kept"])
def test_who_dies_in_the_middle_is_completed_by_the_same_key(asked, store, slurm, monkeypatch, at):
    """The process is gone after any step: what follows it never happens. Then a new one is asked again."""

    class Dead(BaseException):
        pass

    def dies(*_, **__):
        raise Dead

    asks, looks = acting.Submission(config=CONFIG, then="report"), checks()
    Path("asked.yaml").write_text(CONFIG)

    def submit():
        def prepare():
            return submitting.prepare(asks.request(Path("asked.yaml")), looks)

        return once.submit(prepare, Store(), looks, print, who="me", key="of-mine", digest=asks.digest())

    add, adopt, tokens = Store.add, Store.adopt, []

    def only_the_first(self, token, spec, **more):
        return add(self, token, spec, **more) if spec.kind == "train" else dies()

    monkeypatch.setattr(slurm, "find", lambda token: "4711" if token in tokens[:1] else None)
    name, step = {
        "before the first": ("add", dies),
        "between": ("add", only_the_first),
        "before the answer is kept": ("adopt", dies),
    }[at]
    monkeypatch.setattr(Store, name, step)
    with pytest.raises(Dead):
        submit()
    monkeypatch.setattr(Store, "add", add)
    monkeypatch.setattr(Store, "adopt", adopt)
    tokens += [job.token for job in Store().list() if job.external is None]
    before = len(slurm.started)
    assert [job.label for job in submit()] == ["4711", "4712"]
    assert [job.label for job in submit()] == ["4711", "4712"]
    assert before == (0 if at == "before the first" else 1) and len(slurm.started) == 2


def test_a_token_that_another_submits_is_not_submitted_here(asked, store, slurm, monkeypatch):
    ask = {"json": {"config": CONFIG}, "headers": keyed("race")}
    real = Store.add

    def late(self, token, spec, **more):
        real(self, token, spec, **more)  # somebody else, a moment before
        return real(self, token, spec, **more)

    monkeypatch.setattr(Store, "add", late)
    assert code(asked.post(JOBS, **ask)) == (409, "SUBMITTING_ALREADY")
    assert slurm.started == []


def test_a_store_that_fails_lets_nothing_start(asked, slurm, monkeypatch):
    def full(*_, **__):
        raise StoreError("the disk is full")

    monkeypatch.setattr(Store, "submission", full)
    assert code(asked.post(JOBS, json={"config": CONFIG}, headers=keyed("x"))) == (503, "STORE_FAILED")
    assert slurm.started == []


def test_a_job_is_requeued_held_released_and_lowered_and_its_history_says_who(client, store, slurm):
    slurm.becomes("4712", "FAILED", exit_code=1)
    assert client.post(f"{JOBS}/4712/requeue").json()["state"] in ("PENDING", "REQUEUED")
    for action in ("hold", "release"):
        assert client.post(f"{JOBS}/4713/{action}").status_code == 200
    lowered = client.post(f"{JOBS}/4713/nice", json={"by": 100})
    assert [one["action"] for one in lowered.json()["actions"]] == ["hold", "release", "nice 100"]
    assert {one["who"] for one in lowered.json()["actions"]} == {"me (service, own socket)"}
    assert client.post(f"{JOBS}/4711_2/hold").status_code == 200
    assert slurm.told == [
        ("requeue", "4712", None),
        ("hold", "4713", None),
        ("release", "4713", None),
        ("nice 100", "4713", None),
        ("hold", "4711", 2),
    ]
    assert code(client.post(f"{JOBS}/4714/hold")) == (409, "NO_QUEUE")  # it runs
    slurm.becomes("4713", "PENDING", reason="JobHeldUser")  # with another priority, Slurm lets it start
    refused = client.post(f"{JOBS}/4713/nice", json={"by": 1})
    assert code(refused) == (409, "NO_QUEUE") and "release 4713" in refused.json()["error"]["cure"]
    assert code(client.post(f"{JOBS}/4713/nice", json={"by": -1}))[0] == 422
    assert code(client.post(f"{JOBS}/4799/hold")) == (404, "NOT_FOUND")
    assert [one.action for one in store.actions("4714")] == []


@pytest.mark.parametrize("action", ["cancel", "requeue"])
def test_who_dies_after_the_launcher_obeyed_leaves_nothing_that_a_refresh_does_not_tell(
    store, served_jobs, slurm, monkeypatch, action
):
    class Dead(BaseException):
        pass

    obey = getattr(slurm, action)

    def obeys_and_dies(external, task):
        obey(external, task)
        raise Dead

    monkeypatch.setattr(slurm, action, obeys_and_dies)
    slurm.becomes("4712", "FAILED", exit_code=1)
    job = known.current(store, "4712" if action == "requeue" else "4713", warn=print)
    if action == "requeue":  # what ended a day ago is not asked for by itself
        with sqlite3.connect(str(store)) as connection:
            connection.execute("UPDATE jobs SET changed = changed - 86400 WHERE label = '4712'")
    with pytest.raises(Dead):
        if action == "requeue":
            actions.requeue(store, *job, who="me", warn=print)
        else:
            actions.cancel(store, [job], who="me")
    known.refresh(store, warn=print)  # of any process, whatever it is asked
    now = store.get(job[0].key)
    assert (now.state, len(slurm.told)) == ("PENDING" if action == "requeue" else "CANCELLED", 1)
    assert [(one.action, one.who) for one in store.actions(now.key)] == [(action, "me")]


def test_failures_are_forgotten_before_a_job_is_started_again_and_kept_where_that_is_refused(
    client, store, slurm, monkeypatch
):
    """Who is killed once Slurm has heard of it leaves a job that may fail as often as a new one."""
    slurm.becomes("4712", "FAILED", exit_code=1)
    failures = attended_files.failures(Path(store.get("4712").folder), 0, is_array=False)
    failures.write_text("now\t1\tn1\tlost\n")

    def refuses(*_):
        assert not failures.exists()
        raise LauncherError("slurmctld is away")

    with monkeypatch.context() as patched:
        patched.setattr(slurm, "requeue", refuses)
        assert code(client.post(f"{JOBS}/4712/requeue")) == (502, "LAUNCHER_FAILED")
    assert failures.read_text() == "now\t1\tn1\tlost\n" and failures.stat().st_mode & 0o777 == 0o600
    assert client.post(f"{JOBS}/4712/requeue").status_code == 200
    assert not failures.exists()


def test_a_launcher_without_a_queue_says_so_and_one_that_refuses_is_told(client, slurm, monkeypatch):
    def refuses(*_):
        raise LauncherError("`scontrol` failed: Access/permission denied", cure="Only its owner may do that.")

    monkeypatch.setattr(slurm, "hold", refuses)
    assert code(client.post(f"{JOBS}/4713/hold")) == (502, "LAUNCHER_FAILED")
    monkeypatch.setattr(registry, "named", lambda name: Docker())
    assert code(client.post(f"{JOBS}/4713/release")) == (409, "NO_QUEUE")
    assert slurm.told == []


def test_a_job_that_completed_is_not_requeued(client, slurm):
    slurm.jobs["4714"] = [TaskState(0, "COMPLETED", 0, started=1.0, ended=2.0)]
    answer = client.post(f"{JOBS}/4714/requeue")
    assert code(answer) == (400, "JOB_UNUSABLE") and "nothing left to do" in answer.text
    assert slurm.told == []


def test_a_training_is_submitted_again_with_changes(asked, slurm):
    ask = {
        "config": CONFIG,
        "nodes": 2,
        "memory": "16G",
        "time": "90",
        "folds": 3,
        "seeds": 2,
        "shrink": True,
    }
    made = asked.post(JOBS, json={**ask, "source": "images", "then": "report"}).json()["jobs"]
    form = asked.get(f"{JOBS}/{made[1]['key']}/submission").json()
    assert {key: form[key] for key in ("nodes", "memory", "time", "folds", "seeds", "shrink", "site")} == {
        **{key: ask[key] for key in ("nodes", "time", "folds", "seeds", "shrink")},
        "memory": "16384M",
        "site": None,
    }
    changed = {**form, "after": [made[0]["id"]], "overrides": ["name=other", "train.epochs=5"]}
    assert asked.post(f"{JOBS}/check", json=changed).json()["error"] is None
    assert asked.post(JOBS, json=changed).status_code == 201
    assert code(asked.get(f"{JOBS}/{made[2]['key']}/submission")) == (400, "JOB_UNUSABLE")
