"""The readers' processes, seen from the benchmark."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import trainer
from cingulum.bench.processes import Process, Running
from trainer.bench.loader.job import LoaderJob
from trainer.bench.loader.readers import KINDS

# What is added to the readers may be in the checkout, and not installed.
_CHECKOUT = Path(trainer.__file__).resolve().parent.parent


def python_of(name: str) -> Path | None:
    """Return the Python that a reader needs; None where that is not installed."""
    python = Path(KINDS[name].python or sys.executable)
    return python if python.exists() else None


class ReaderProcess(Running):
    """One reader in a process of its own."""

    def __init__(self, name: str, job: LoaderJob) -> None:
        line = [str(python_of(name)), "-m", "trainer.bench.loader.worker"]
        line += [json.dumps(dataclasses.asdict(one)) for one in (KINDS[name], job)]
        environment = {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(_CHECKOUT)}
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
