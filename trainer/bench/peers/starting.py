"""The processes of a peer, seen from outside: started together, told to go, timed out, and all ended."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import trainer
from jobs.testbed import Testbed, layout
from trainer.bench.peers.job import PeerJob, PeerProcess
from trainer.bench.together import Process, Together
from trainer.errors import WorldError

CHECKOUT = Path(trainer.__file__).resolve().parent.parent
ENVIRONMENT = CHECKOUT / ".venv-peers"
MODULES = {"ddp": "ddp", "multiworker": "multiworker", "tf-parameter-server": "tf_parameter_server"}
# Below the ports that Linux gives to outgoing connections.
_PORTS = range(20000, 32000)
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def missing(peer: str, environment: Path | None = None) -> str | None:
    """Why a peer cannot be measured here; None where it can.

    Args:
        peer: one of `MODULES`.
        environment: where `make bench-peers` has installed PyTorch; default: .venv-peers.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1") and Path("/dev/nvidiactl").exists():
        return "peers are compared on processors only: set CUDA_VISIBLE_DEVICES=-1"
    if peer != "ddp":
        return None
    where = environment or ENVIRONMENT
    if not (where / "bin" / "python").exists():
        return "not installed: make bench-peers"
    lacks = [name for name in ("torch", "keras") if not list(where.glob(f"lib/python*/site-packages/{name}"))]
    return f"{' and '.join(lacks)} not installed: make bench-peers" if lacks else None


def run(
    jobs: Sequence[PeerJob],
    *,
    testbed: Testbed | None = None,
    hosts: Sequence[Sequence[str]] | None = None,
    environment: Path | None = None,
    before: Callable[[], Any] = lambda: None,
    after: Callable[[], Any] = lambda: None,
) -> list[list[dict[str, Any]]]:
    """Measure jobs at the same time: each warms up, and all of them go on together.

    Args:
        jobs: what to time; several are independent of each other.
        testbed: emulated hosts.
        hosts: for each job, the host of each of its processes; default: this host.
        environment: where `make bench-peers` has installed PyTorch; default: .venv-peers.
        before: called when all are ready, right before the timed steps.
        after: called when all have done them, while all processes are still there.

    Returns:
        For each job what its ranks found (with servers: what the coordinator found): `seconds` of each step.

    Raises:
        WorldError: a process failed, which is named, or was not ready or done in time; all are ended.
    """
    processes: list[Process] = []
    for number, job in enumerate(jobs):
        placed = hosts[number] if hosts else None
        processes += processes_of(job, number, testbed=testbed, hosts=placed, environment=environment)
    patience = max(job.timeout_s for job in jobs)
    with Together(processes) as running:
        running.hear(processes, patience, "ready")
        before()
        running.go()
        found = running.hear([p for p in processes if p.reports], patience, "done")
        after()
    return [
        [json.loads(found[p]) for p in processes if p.reports and p.launch == number]
        for number in range(len(jobs))
    ]


def processes_of(
    job: PeerJob,
    launch: int = 0,
    *,
    testbed: Testbed | None = None,
    hosts: Sequence[str] | None = None,
    environment: Path | None = None,
) -> Iterator[Process]:
    """The processes of a job; the arguments are those of `run`, `hosts` those of this job alone.

    Raises:
        WorldError: not as many hosts as processes, or no port is free.
    """
    kinds = job.kinds
    if hosts is not None and len(hosts) != len(kinds):
        raise WorldError(f"{job.peer} has {len(kinds)} processes, and hosts were named for {len(hosts)}.")
    if testbed is None or hosts is None:
        addresses = [f"127.0.0.1:{port}" for port in _free_ports(len(kinds))]
    else:
        ports = random.sample(_PORTS, len(kinds))
        addresses = [f"{layout.address(host)}:{port}" for host, port in zip(hosts, ports, strict=True)]
    python = (environment or ENVIRONMENT) / "bin" / "python" if job.peer == "ddp" else Path(sys.executable)
    settings = {
        **_ONE_THREAD,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "-1",
        "PYTHONPATH": str(CHECKOUT),
        "KERAS_BACKEND": "torch" if job.peer == "ddp" else "tensorflow",
    }
    for index, kind in enumerate(kinds):
        process = PeerProcess(job, tuple(addresses), index, layout.LINK if testbed else None)
        argv = [str(python), "-m", f"trainer.bench.peers.{MODULES[job.peer]}", process.to_json()]
        where = ""
        if testbed is not None and hosts is not None:
            argv = testbed.argv(hosts[index], argv, environment=settings)
            where = f" @ {hosts[index]}"
        reports = kind == ("coordinator" if job.servers else "rank")
        yield Process(job.peer, launch, f"{kind} {process.number}{where}", reports, tuple(argv), settings)


def _free_ports(count: int) -> list[int]:
    """Ports of this host that nobody listens on now."""
    found: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise WorldError(f"There are no {count} free ports from {_PORTS[0]} to {_PORTS[-1]} on this host.")
