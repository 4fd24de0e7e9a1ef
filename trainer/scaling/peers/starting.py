"""The processes of a peer, seen from outside: started together, told to go, timed out, and all ended."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import trainer
from jobs.testbed import Testbed, layout
from trainer.errors import WorldError
from trainer.scaling.launching import LINK
from trainer.scaling.peers.job import PeerJob, Task

CHECKOUT = Path(trainer.__file__).resolve().parent.parent
ENVIRONMENT = CHECKOUT / ".venv-peers"
MODULES = {"ddp": "ddp", "multiworker": "multiworker", "tf-parameter-server": "tf_parameter_server"}
# Below the ports that Linux gives to outgoing connections.
_PORTS = range(20000, 32000)
_PATIENCE_S = 10.0
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
    processes: list[_Process] = []
    for number, job in enumerate(jobs):
        placed = hosts[number] if hosts else None
        processes += _processes(number, job, testbed, placed, environment or ENVIRONMENT)
    patience = max(job.timeout_s for job in jobs)
    with _Running(processes) as running:
        running.hear(processes, patience, "ready")
        before()
        running.go()
        found = running.hear([p for p in processes if p.reports], patience, "done")
        after()
    return [
        [json.loads(found[p]) for p in processes if p.reports and p.launch == number]
        for number in range(len(jobs))
    ]


@dataclasses.dataclass(frozen=True)
class _Process:
    """One process that is to be started; `argv` and the environment to add."""

    launch: int
    name: str
    reports: bool
    argv: tuple[str, ...]
    environment: Mapping[str, str] = dataclasses.field(hash=False)


def _processes(
    launch: int, job: PeerJob, testbed: Testbed | None, hosts: Sequence[str] | None, environment: Path
) -> Iterator[_Process]:
    kinds = job.kinds
    if hosts is not None and len(hosts) != len(kinds):
        raise WorldError(f"{job.peer} has {len(kinds)} processes, and hosts were named for {len(hosts)}.")
    if testbed is None or hosts is None:
        addresses = [f"127.0.0.1:{port}" for port in _free_ports(len(kinds))]
    else:
        ports = random.sample(_PORTS, len(kinds))
        addresses = [f"{layout.address(host)}:{port}" for host, port in zip(hosts, ports, strict=True)]
    python = environment / "bin" / "python" if job.peer == "ddp" else Path(sys.executable)
    settings = {
        **_ONE_THREAD,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "-1",
        "PYTHONPATH": str(CHECKOUT),
        "KERAS_BACKEND": "torch" if job.peer == "ddp" else "tensorflow",
    }
    for index, kind in enumerate(kinds):
        task = Task(job, tuple(addresses), index, LINK if testbed else None)
        argv = [str(python), "-m", f"trainer.scaling.peers.{MODULES[job.peer]}", task.to_json()]
        where = ""
        if testbed is not None and hosts is not None:
            argv = testbed.argv(hosts[index], argv, environment=settings)
            where = f" @ {hosts[index]}"
        reports = kind == ("coordinator" if job.servers else "rank")
        yield _Process(launch, f"{kind} {task.number}{where}", reports, tuple(argv), settings)


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


class _Running:
    """Processes that run; leaving the context ends all of them."""

    def __init__(self, wanted: Sequence[_Process]) -> None:
        self._wanted = wanted
        self._lines: queue.Queue[tuple[_Process, str]] = queue.Queue()
        self._started: dict[_Process, subprocess.Popen[str]] = {}
        self._complaints: dict[_Process, Any] = {}
        self._readers: list[threading.Thread] = []

    def __enter__(self) -> _Running:
        try:
            for one in self._wanted:
                self._start(one)
        except BaseException:
            self._end(kill=True)
            raise
        return self

    def _start(self, one: _Process) -> None:
        self._complaints[one] = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed by `_end`
        process = subprocess.Popen(
            one.argv,
            env={**os.environ, **one.environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints[one],
            text=True,
            start_new_session=True,  # Ctrl-C is ours to answer
        )
        self._started[one] = process

        def read() -> None:
            for line in process.stdout or ():
                self._lines.put((one, line))
            self._lines.put((one, ""))

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        self._readers.append(reader)

    def go(self) -> None:
        """Tell all of them."""
        for process in self._started.values():
            with contextlib.suppress(BrokenPipeError):  # `hear` says why
                if process.stdin:
                    process.stdin.write("go\n")
                    process.stdin.flush()

    def hear(self, whom: Sequence[_Process], seconds: float, word: str) -> dict[_Process, str]:
        """What follows the word on a line of each of them.

        Raises:
            WorldError: one of all processes ended, or so many seconds passed.
        """
        said: dict[_Process, str] = {}
        deadline = time.monotonic() + seconds
        while len(said) < len(whom):
            try:
                one, line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                late = ", ".join(one.name for one in whom if one not in said)
                peer = _peer(self._wanted[0])
                raise WorldError(f"{peer}: waited {seconds:.0f} s in vain for {late} to be {word}.") from None
            if not line:
                raise WorldError(f"{_peer(one)}: {one.name} failed:\n{self._last_words(one)}")
            if line.startswith(word):
                said[one] = line.removeprefix(word)
        return said

    def _last_words(self, one: _Process) -> str:
        code = self._started[one].wait()
        self._complaints[one].seek(0)
        lines = self._complaints[one].read().strip().splitlines()
        return "\n".join(lines[-15:]) or f"it ended with exit code {code}"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(kill=kind is not None)

    def _end(self, *, kill: bool) -> None:
        """End all: by closing what they listen to, or at once, and by force those that do not."""
        for process in self._started.values():
            with contextlib.suppress(BrokenPipeError):
                if process.stdin:
                    process.stdin.close()
            if kill:
                process.kill()
        deadline = time.monotonic() + _PATIENCE_S
        for process in self._started.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            process.kill()
            process.wait()
        for reader in self._readers:
            reader.join(_PATIENCE_S)
        for process in self._started.values():
            if process.stdout:
                process.stdout.close()
        for file in self._complaints.values():
            file.close()


def _peer(one: _Process) -> str:
    """Its name, from its module."""
    module = next(word for word in one.argv if word.startswith("trainer.scaling.peers."))
    return next(name for name, known in MODULES.items() if module.endswith(f".{known}"))
