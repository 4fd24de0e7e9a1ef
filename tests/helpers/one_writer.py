"""Whether a run folder's history tells of one writer at a time: every line and file with its start."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any


def starts(folder: Path) -> dict[int, dict[str, Any]]:
    """The claims of a run folder, by their numbers."""
    return {int(path.stem): json.loads(path.read_text()) for path in (folder / ".writers").glob("*.json")}


def contradictions(folder: Path) -> list[str]:
    """Every line and file whose start contradicts the order of claims; empty where one writer explains all.

    - Claims count from 1 without a gap, and tell their own number.
    - Rows of metrics.jsonl: epochs and starts never go back. So do checkpoints, in the order of their steps.
    - No start is named that nobody claimed.
    - What a start put under its name, it put there before a later start began to read: `rename` sets the time
      of a file's change (ctime), on the clock that gave `.writers/N.reads` its own.
    """
    claims, found = starts(folder), []
    if sorted(claims) != list(range(1, len(claims) + 1)):
        found.append(f"claims {sorted(claims)}: not 1, 2, 3, ...")
    found += [
        f"claim {number}: says {claim['start']}"
        for number, claim in claims.items()
        if claim["start"] != number
    ]
    began = {
        int(path.stem): path.stat().st_mtime_ns for path in (folder / ".writers").glob("*.reads")
    }  # a start that was fenced off before it read has none

    def look(what: str, start: int, *, at: Path | None = None) -> None:
        if start not in claims:
            found.append(f"{what}: of start {start}, which nobody claimed")
        later = [number for number in began if number > start]
        if at is not None and later and at.stat().st_ctime_ns > began[min(later)]:
            found.append(f"{what}: put by start {start} after start {min(later)} had begun to read")

    rows = _rows(folder / "metrics.jsonl")
    for before, row in zip([None, *rows], rows, strict=False):
        look(f"metrics.jsonl, epoch {row['epoch']}", row["start"])
        if before is not None and (row["epoch"] != before["epoch"] + 1 or row["start"] < before["start"]):
            found.append(
                f"metrics.jsonl: epoch {row['epoch']} of start {row['start']} follows "
                f"epoch {before['epoch']} of start {before['start']}"
            )
    if rows and rows[0]["epoch"] != 1:
        found.append(f"metrics.jsonl: begins with epoch {rows[0]['epoch']}")
    newest = 0
    for path in sorted((folder / "checkpoints").glob("step-*")):
        start = json.loads((path / "manifest.json").read_text())["start"]
        look(path.name, start, at=path)
        if start < newest:
            found.append(f"{path.name}: of start {start}, behind one of start {newest}")
        newest = max(newest, start)
    result = folder / "result.json"
    if result.is_file():
        look("result.json", json.loads(result.read_text())["start"], at=result)
    for path in (folder / "tensorboard").glob("*"):
        look(path.name, int(path.suffix.removeprefix(".start-")))
    return found


def leftovers(folder: Path) -> list[str]:
    """Staging folders and halves of files that are there although nobody trains the run."""
    names = [*folder.glob(".writing-*"), *folder.glob(".fenced-*"), *folder.rglob("*.partial")]
    return sorted(str(path.relative_to(folder)) for path in [*names, *(folder / ".writers").glob(".*")])


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def fingerprints(folder: Path) -> dict[str, str]:
    """Name and SHA-256 of every file in a run folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
