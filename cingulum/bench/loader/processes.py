"""The readers' processes, seen from the benchmark."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from cingulum.bench.peers import CHECKOUT
from cingulum.bench.peers import ENVIRONMENT as PEERS
from cingulum.bench.processes import Process, Running
from trainer.bench.loader.job import LoaderJob
from trainer.bench.loader.readers import KINDS


def python_of(name: str, peers: Path) -> Path | None:
    """Return the Python that a reader needs; None where the peers are not installed."""
    if not KINDS[name].peers:
        return Path(sys.executable)
    python = peers / "bin" / "python"
    return python if python.exists() else None


class ReaderProcess(Running):
    """One reader in a process of its own."""

    def __init__(self, name: str, job: LoaderJob, peers: Path = PEERS) -> None:
        line = [str(python_of(name, peers)), "-m", "trainer.bench.loader.worker", name]
        line.append(json.dumps(dataclasses.asdict(job)))
        environment = {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(CHECKOUT)}
        self._reader = Process("loader", name, line, environment)
        super().__init__([self._reader])

    def ask(self, what: str, **arguments: Any) -> dict[str, Any]:
        """Let it do something, and return its answer.

        Raises:
            WorldError: it ended instead.
        """
        self.tell(what, **arguments)
        return self.answer()

    def tell(self, what: str, **arguments: Any) -> None:
        """Let it do something."""
        self.say(json.dumps({"do": what, **arguments}))

    def answer(self) -> dict[str, Any]:
        """Return what it found.

        Raises:
            WorldError: it ended instead.
        """
        found: dict[str, Any] = json.loads(self.hear([self._reader], None, "")[self._reader])
        return found
