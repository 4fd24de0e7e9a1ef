"""Start the processes of other frameworks that a study compares with, and hear their times."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.job import PeerJob, PeerProcess
from cingulum.bench.processes import Process, Running
from jobs.testbed import Testbed, layout
from trainer.errors import WorldError

CHECKOUT = Path(__file__).resolve().parents[2]
ENVIRONMENT = CHECKOUT / ".venv-peers"
INSTALL = "make bench-peers"
MODULES = {"ddp": "ddp", "multiworker": "multiworker", "tf-parameter-server": "tf_parameter_server"}
TITLES = {
    "ddp": "PyTorch DDP (gloo)",
    "multiworker": "tf.distribute MultiWorkerMirrored",
    "tf-parameter-server": "tf.distribute ParameterServer",
}
# Below the ports that Linux gives to outgoing connections.
_PORTS = range(20000, 32000)
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def missing(peer: str, environment: Path | None = None) -> str | None:
    """Return why a peer cannot be measured here; None where it can.

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
        return f"not installed: {INSTALL}"
    lacks = [name for name in ("torch", "keras") if not list(where.glob(f"lib/python*/site-packages/{name}"))]
    return f"{' and '.join(lacks)} not installed: {INSTALL}" if lacks else None


def run(
    job: PeerJob,
    *,
    testbed: Testbed | None = None,
    hosts: Sequence[str] | None = None,
    environment: Path | None = None,
    before: Callable[[], Any] = lambda: None,
    after: Callable[[], Any] = lambda: None,
) -> list[dict[str, Any]]:
    """Start the processes of a job, let them warm up, and time its steps.

    Args:
        job: what to time.
        testbed: emulated hosts.
        hosts: the host of each process; default: this host.
        environment: where `make bench-peers` has installed PyTorch; default: .venv-peers.
        before: called when all are ready, right before the timed steps.
        after: called when all have done them, while all processes are still there.

    Returns:
        What each rank found (with servers: what the coordinator found): `seconds` of each step.

    Raises:
        WorldError: a process failed, which is named, or was not ready or done in time; all are ended.
    """
    processes = processes_of(job, testbed=testbed, hosts=hosts, environment=environment)
    timing = "coordinator" if job.servers else "rank"
    reporting = [one for one, kind in zip(processes, job.kinds, strict=True) if kind == timing]
    with Running(processes) as running:
        running.hear(processes, job.timeout_s, "ready")
        before()
        running.say("go")
        found = running.hear(reporting, job.timeout_s, "done")
        after()
    return [json.loads(found[one]) for one in reporting]


def processes_of(
    job: PeerJob,
    *,
    testbed: Testbed | None = None,
    hosts: Sequence[str] | None = None,
    environment: Path | None = None,
) -> list[Process]:
    """Return the processes of a job, in the order of `job.kinds`; the arguments are those of `run`.

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
    processes = []
    for index, kind in enumerate(kinds):
        process = PeerProcess(job, tuple(addresses), index, layout.LINK if testbed else None)
        argv = [str(python), "-m", f"benchmarks.peers.{MODULES[job.peer]}", process.to_json()]
        where = ""
        if testbed is not None and hosts is not None:
            argv = testbed.argv(hosts[index], argv, environment=settings)
            where = f" @ {hosts[index]}"
        processes.append(Process(job.peer, f"{kind} {process.number}{where}", argv, settings))
    return processes


def _free_ports(count: int) -> list[int]:
    """Return ports of this host that no process listens on now."""
    found: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise WorldError(f"There are no {count} free ports from {_PORTS[0]} to {_PORTS[-1]} on this host.")
