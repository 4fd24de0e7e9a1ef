"""Tests under a real mpirun: a program, started on some ranks by the project's own launcher."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from jobs.local import mpirun

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Outcome:
    """What a launch left behind: exit code, both streams, and how long it took in seconds."""

    exit_code: int
    out: str
    err: str
    seconds: float


def _environment(additions: Mapping[str, str]) -> dict[str, str]:
    # A launcher's or a profile's settings of the person who runs the tests must not leak in.
    kept = {k: v for k, v in os.environ.items() if not re.match(r"(OMPI|PMIX|SLURM|HOROVOD)_", k)}
    return {**kept, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(ROOT), **additions}


def run(argv: list[str], environment: Mapping[str, str] | None = None, *, timeout: float = 200) -> Outcome:
    started = time.monotonic()
    done = subprocess.run(
        argv,
        env=_environment(environment or {}),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr, time.monotonic() - started)


Launch = Callable[..., Outcome]


@pytest.fixture(scope="session")
def launch() -> Launch:
    """`launch(ranks, program, *arguments, environment={}, timeout=...)` on ranks; 0: without mpirun."""

    def start(
        ranks: int,
        program: str | Path,
        *arguments: object,
        environment: Mapping[str, str] | None = None,
        timeout: float = 200,
    ) -> Outcome:
        path = PROGRAMS / program
        argv = [sys.executable, str(path), *map(str, arguments)]
        if ranks == 0:
            return run(argv, environment, timeout=timeout)
        line, additions = mpirun.command(ranks, argv)
        return run(line, {**additions, **(environment or {})}, timeout=timeout)

    return start


@pytest.fixture(scope="module")
def asked_for(request: pytest.FixtureRequest) -> Callable[..., list[str]]:
    """`asked_for("name", ranks=3)`: once each, the names of this file's tests that are run and of 3 ranks."""

    def names(parameter: str, **others: object) -> list[str]:
        of_file = [item for item in request.session.items if item.path == request.path]
        asked = [item.callspec.params for item in of_file if hasattr(item, "callspec")]
        chosen = [one for one in asked if parameter in one and others.items() <= one.items()]
        return list(dict.fromkeys(one[parameter] for one in chosen))

    return names
