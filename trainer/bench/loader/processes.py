"""The readers' processes, seen from the benchmark: started, asked, and ended whatever happens."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

import trainer
from trainer.bench.loader.job import LoaderJob
from trainer.bench.loader.readers import KINDS

CHECKOUT = Path(trainer.__file__).resolve().parent.parent
PEERS = CHECKOUT / ".venv-peers"
_PATIENCE_S = 10.0


class ReaderFailed(Exception):
    """A reader's process ended; says what it said last."""


def python_of(name: str, peers: Path) -> Path | None:
    """The Python that a reader needs; None where the peers are not installed."""
    if not KINDS[name].peers:
        return Path(sys.executable)
    python = peers / "bin" / "python"
    return python if python.exists() else None


class ReaderProcess:
    """One reader in a process, and a session, of its own."""

    def __init__(self, name: str, job: LoaderJob, peers: Path = PEERS) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  closed by `__exit__`
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(CHECKOUT)}
        self._process = subprocess.Popen(
            [
                str(python_of(name, peers)),
                "-m",
                "trainer.bench.loader.worker",
                name,
                json.dumps(dataclasses.asdict(job)),
            ],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            start_new_session=True,  # Ctrl-C is ours to answer
        )

    def ask(self, what: str, **arguments: Any) -> dict[str, Any]:
        """Let it do something, and wait for the answer.

        Raises:
            ReaderFailed: it ended instead.
        """
        self.tell(what, **arguments)
        return self.answer()

    def tell(self, what: str, **arguments: Any) -> None:
        """Let it do something."""
        with contextlib.suppress(BrokenPipeError):  # `answer` says why
            if self._process.stdin:
                self._process.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
                self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """What it found.

        Raises:
            ReaderFailed: it ended instead.
        """
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise ReaderFailed(self._last_words())
        found: dict[str, Any] = json.loads(line)
        return found

    def _last_words(self) -> str:
        self._process.wait()
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"it ended with exit code {self._process.returncode}"

    def __enter__(self) -> ReaderProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it and whatever it started."""
        with contextlib.suppress(BrokenPipeError):
            if self._process.stdin:
                self._process.stdin.close()
        if kind is not None:
            self._signal(signal.SIGTERM)
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_PATIENCE_S)
        finally:
            self._signal(signal.SIGKILL)
            self._process.wait()
            if self._process.stdout:
                self._process.stdout.close()
            self._said.close()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
