"""How fast a training step is: two ranks against two copies, our loop against Keras' own, ways to reduce.

Every process has one compute thread. What is compared is measured in turn, several times, and the median
of the repeats' ratios is reported with their spread.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jobs.launchers import mpirun
from trainer.errors import WorldError
from trainer.telemetry import step_peers
from trainer.telemetry.step_peers import spread
from trainer.telemetry.step_worker import StepJob

MIB = 2**20
Progress = Callable[[str], None]

# What `ring` compares: name, options of the optimizer, Horovod's settings.
REDUCTIONS: tuple[tuple[str, dict[str, Any], dict[str, str]], ...] = (
    ("grouped", {"reduction": "grouped"}, {}),
    ("per tensor", {"reduction": "per_tensor"}, {}),
    ("per tensor, fused up to 1 MiB", {"reduction": "per_tensor"}, {"HOROVOD_FUSION_THRESHOLD": str(MIB)}),
    ("buckets of 1 MiB", {"bucket_mb": 1.0}, {}),
    ("buckets of 4 MiB", {"bucket_mb": 4.0}, {}),
    ("buckets of 1 MiB, cycle 5 ms", {"bucket_mb": 1.0}, {"HOROVOD_CYCLE_TIME": "5"}),
    # What Open MPI does unless told otherwise; see SETTINGS in trainer/launch.py.
    ("buckets of 1 MiB, TCP put", {"bucket_mb": 1.0}, {"OMPI_MCA_btl_tcp_flags": "send,put,inplace"}),
)


def step(
    job: StepJob,
    *,
    repeats: int,
    progress: Progress,
    peers: Sequence[str] = step_peers.NAMES,
    environment: Path | None = None,
) -> dict[str, Any]:
    """Efficiency of two ranks, overhead of our loop, and other frameworks in the same run.

    Args:
        job: what to time.
        repeats: measurements of each kind, in turn.
        progress: told what is being measured.
        peers: of `step_peers.NAMES`.
        environment: where `make bench-peers` has installed PyTorch; default: .venv-peers.

    Returns:
        `efficiency`: throughput of two ranks over that of two single-rank copies run at once; `overhead`: our
        loop's time over that of Keras' `fit` at one rank, minus 1; each a median with `_min` and `_max`;
        step times in seconds, and the machine; what `step_peers.figures` says of the peers.
    """
    others = [step_peers.PeerTimes(name, job, environment) for name in peers]
    efficiencies, ranks_s, copies_s, overheads = [], [], [], []
    for repeat in range(repeats):
        progress(f"repeat {repeat + 1} of {repeats}: two ranks")
        ranks = _seconds(_together([_ranks_line(job, 2)]))
        progress(f"repeat {repeat + 1} of {repeats}: two copies")
        copies = _seconds(_together([_copy_line(job), _copy_line(job)]))
        progress(f"repeat {repeat + 1} of {repeats}: our loop and Keras in turn")
        alone = dataclasses.replace(job, kind="overhead", blocks=3)
        overheads.append(_together([_copy_line(alone)])[0][0])
        ranks_s.append(ranks)
        copies_s.append(copies)
        efficiencies.append(copies / ranks)
        for other in others:
            progress(f"repeat {repeat + 1} of {repeats}: {other.title}")
            other.measure()
    return {
        **spread("efficiency", efficiencies),
        **spread("overhead", [found["overhead"] for found in overheads]),
        "two_ranks_step_s": statistics.median(ranks_s),
        "two_copies_step_s": statistics.median(copies_s),
        "our_loop_step_s": statistics.median(found["step_s"] for found in overheads),
        "keras_fit_step_s": statistics.median(found["keras_step_s"] for found in overheads),
        **step_peers.figures(ranks_s, others),
        "repeats": repeats,
        "job": dataclasses.asdict(job),
        "machine": machine(),
    }


def ring(
    job: StepJob, *, ranks: int, repeats: int, progress: Progress, hosts: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Step time of each way to reduce, in seconds, with the time of as many independent copies beside it.

    Args:
        job: what to time.
        ranks: the world size.
        repeats: measurements of each kind, in turn.
        progress: told what is being measured.
        hosts: ranks that fit on each host, by name; default: this host.
    """
    found: dict[str, list[float]] = {name: [] for name in ("no reduction", *(r[0] for r in REDUCTIONS))}
    for repeat in range(repeats):
        progress(f"repeat {repeat + 1} of {repeats}: no reduction")
        found["no reduction"].append(_seconds(_together([_copy_line(job)] * ranks)))
        for name, options, environment in REDUCTIONS:
            progress(f"repeat {repeat + 1} of {repeats}: {name}")
            reducing = dataclasses.replace(job, ring=options)
            found[name].append(_seconds(_together([_ranks_line(reducing, ranks, environment, hosts)])))
    return {
        "step_s": {name: spread("median", times) for name, times in found.items()},
        "ranks": ranks,
        "repeats": repeats,
        "job": dataclasses.asdict(job),
        "machine": machine(),
    }


def machine() -> dict[str, Any]:
    """The host the figures belong to."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if line.startswith("model name")
    ]
    return {
        "cpu": names[0] if names else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load_1min": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
    }


Line = tuple[list[str], dict[str, str]]


def _copy_line(job: StepJob) -> Line:
    return [sys.executable, "-m", "trainer.telemetry.step_worker", json.dumps(dataclasses.asdict(job))], {}


def _ranks_line(
    job: StepJob,
    ranks: int,
    environment: Mapping[str, str] | None = None,
    hosts: Mapping[str, int] | None = None,
) -> Line:
    # By `env`, not by our own environment: mpirun hands that down to the ranks of this host only.
    settings = [f"{name}={value}" for name, value in (environment or {}).items()]
    return mpirun.command(ranks, ["env", *settings, *_copy_line(job)[0]], hosts=hosts)


def _together(lines: Sequence[Line]) -> list[list[dict[str, float]]]:
    """Start all, let all warm up, say go to all at once; each one's findings, by rank."""
    processes = [
        subprocess.Popen(
            line,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for line, environment in lines
    ]
    try:
        ready = [process.stdout.readline() if process.stdout else "" for process in processes]
        if all(word == "ready\n" for word in ready):
            for process in processes:
                if process.stdin:
                    process.stdin.write("go\n")
                    process.stdin.flush()
        outcomes = [process.communicate() for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, complaints) in zip(processes, outcomes, strict=True):
        if process.returncode != 0:
            raise WorldError(f"A process of the benchmark failed:\n{complaints.strip()}")
    return [json.loads(said.splitlines()[-1]) for said, _ in outcomes]


def _seconds(found: list[list[dict[str, float]]]) -> float:
    """Mean over processes of their median seconds per step."""
    return statistics.mean(rank["step_s"] for launch in found for rank in launch)
