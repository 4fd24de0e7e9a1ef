"""What `cingulum explain` left in a run folder: explanations/<method>/ with summary.json and pictures."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.report.story import Story

MOST_PICTURES = 6
# A page that carries more than this is slow to open on a phone.
LARGEST_PICTURE = 600_000
_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Attribution:
    """One method of attribution.

    Attributes:
        name: of the method, as its summary or its folder says.
        facts: figures of the summary, in words.
        pictures: (caption, data address) of each picture.
        left_out: pictures in the folder that are not shown here.
    """

    name: str
    facts: tuple[tuple[str, str], ...]
    pictures: tuple[tuple[str, str], ...]
    left_out: int


def read(story: Story) -> list[Attribution]:
    """The methods in alphabetical order; what cannot be read is a note."""
    folder = story.folder / "explanations"
    found = []
    for method in sorted(path for path in folder.glob("*") if path.is_dir()):
        summary = _summary(story, method)
        pictures, left_out = _pictures(method)
        if not summary and not pictures:
            continue
        name = summary.pop("method", None)
        facts = tuple(_facts(summary))
        found.append(Attribution(str(name or method.name), facts, tuple(pictures), left_out))
    return found


def _summary(story: Story, folder: Path) -> dict[str, Any]:
    path = folder / "summary.json"
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        value = None
    if isinstance(value, dict):
        return value
    story.notes.append(f"{path.relative_to(story.folder)} is damaged; its figures are left out.")
    return {}


def _facts(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every number and word of the summary, lists and long words left out."""
    for key, value in tree.items():
        name = f"{prefix}{key}".replace("_", " ")
        if isinstance(value, dict):
            yield from _facts(value, f"{name}, ")
        elif isinstance(value, float):
            yield name, f"{value:.3f}"
        elif isinstance(value, (int, str)) and len(str(value)) < 80:
            yield name, str(value)


def _pictures(folder: Path) -> tuple[list[tuple[str, str]], int]:
    shown: list[tuple[str, str]] = []
    left_out = 0
    for path in sorted(folder.glob("*.png")):
        try:
            content = path.read_bytes() if path.stat().st_size <= LARGEST_PICTURE else b""
        except OSError:
            content = b""
        if len(shown) < MOST_PICTURES and content.startswith(_SIGNATURE):
            address = "data:image/png;base64," + base64.b64encode(content).decode()
            shown.append((path.stem.replace("_", " "), address))
        else:
            left_out += 1
    return shown, left_out
