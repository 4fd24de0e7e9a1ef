"""Telemetry of runs that nobody trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from trainer.telemetry.json_lines import LineFile


def append(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Add whole lines to one of the files of a run."""
    with closing(LineFile(path, None)) as file:
        file.append(lines)
