"""Jobs in a store, with run folders and logs, for tests of the service; numbers are MADE UP."""

from __future__ import annotations

import json
from pathlib import Path

import yaml
from pretended_slurm import Pretended

from jobs.home import job_folder, new_token
from jobs.job import Job
from jobs.schedulers.base import TaskState
from jobs.spec import JobSpec, Resources
from jobs.store.store import Store

# A name that would run, were it ever taken for anything but text.
HOSTILE = "<img src=x onerror=alert(1)></script><script>alert(2)</script>{{7*7}}"
EPOCHS, STEPS = 20, 5


def add(
    store: Store,
    slurm: Pretended,
    name: str,
    *states: TaskState,
    kind: str = "train",
    run: Path | None = None,
) -> Job:
    """Add a job that the launcher knows in these states, with a line of output."""
    tasks = tuple(("cingulum", "train", "--fold", str(task), "--seed", "0") for task in range(len(states)))
    spec = JobSpec(
        name=name,
        kind=kind,
        tasks=tasks,
        folder="/work",
        resources=Resources(nodes=2, minutes=90),
        environment={"STUDY": "a-private-value"},
        run=None if run is None else str(run),
    )
    token = new_token()
    job = store.add(token, spec, launcher="slurm", site="lab", folder=job_folder(token))
    external = str(4710 + job.number)
    slurm.jobs[external] = list(states)
    job = store.adopt(job, external)
    store.record([(job, list(states))])
    for task in range(len(states)):
        (Path(job.folder) / f"out-{task}.log").write_text(f"{name}: epoch 1 loss 0.5\n")
    return store.get(job.key)


def write_run(folder: Path, epochs: int) -> Path:
    """Write a run folder after so many of EPOCHS epochs."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "name": folder.name,
        "data": {"shards": "shards"},
        "train": {"epochs": EPOCHS, "global_batch": 8},
    }
    if not (folder / "config.yaml").exists():
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
    rows = [row(epoch) for epoch in range(1, epochs + 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    (folder / "telemetry").mkdir(exist_ok=True)
    lines = [
        {
            "step": step,
            "seconds": 0.2 + 0.01 * (step % 3),
            "exposed": 0.05,
            "input_wait": 0.01,
            "first": step == 1,
        }
        for step in range(1, epochs * STEPS + 3)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "telemetry" / "rank-00000.jsonl").write_text(text)
    checkpoint = folder / "checkpoints" / f"step-{epochs * STEPS:08d}"
    checkpoint.mkdir(parents=True, exist_ok=True)
    (checkpoint / "model.keras").write_bytes(b"0" * 2048)
    return folder


def row(epoch: int) -> dict:
    """Return a row of metrics.jsonl; epoch 9 is the best."""
    return {
        "epoch": epoch,
        "step": epoch * STEPS,
        "loss": 0.7 * 0.93**epoch,
        "accuracy": 1 - 0.5 * 0.93**epoch,
        "val_loss": 0.4 + 0.004 * (epoch - 9) ** 2,
        "val_cross_entropy": 0.5 + 0.004 * (epoch - 9) ** 2,
        "val_accuracy": 0.8 - 0.002 * (epoch - 9) ** 2,
        "val_auc": None if epoch == 1 else 0.85,
        "learning_rate": 1e-3 * 0.9**epoch,
        "samples_per_second": 40.0 + epoch % 3,
        "seconds": 10.0,
    }


def fill(store: Store, slurm: Pretended, folder: Path) -> dict[str, Job]:
    """Add a job of each kind that a list may have; return them by name."""
    running = TaskState(0, "RUNNING", hosts=("n1", "n2"), started=1.7e9)
    waiting = TaskState(0, "PENDING", reason="Priority")
    failed = TaskState(
        0,
        "FAILED",
        1,
        reason="rank 2 @ n3 was lost: <b>no</b>",
        hosts=("n3",),
        started=1.7e9,
        ended=1.7e9 + 60,
    )
    folds = [
        TaskState(0, "COMPLETED", 0, started=1.7e9, ended=1.7e9 + 9),
        TaskState(1, "RUNNING", started=1.7e9),
        TaskState(2, "PENDING"),
    ]
    for fold in range(2):
        write_run(folder / "folds" / f"fold-{fold}-seed-0", 20 - 10 * fold)
    found = {
        "folds": add(store, slurm, "folds", *folds, kind="crossval", run=folder / "folds"),
        "failed": add(store, slurm, "failed", failed, run=folder / "failed"),
        "hostile": add(store, slurm, HOSTILE, waiting),
        "trains": add(store, slurm, "trains", running, run=write_run(folder / "trains", 12)),
    }
    return found
