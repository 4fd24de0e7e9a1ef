"""Small parts of sentences about a run."""

from __future__ import annotations

from typing import Any


def get(tree: Any, key: str) -> Any:
    """Return the value of a dotted key, or None."""
    for part in key.split("."):
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree


def blank(what: str) -> str:
    """Return a mark for what only the authors know."""
    return f"[to be filled in: {what}]"


def count(n: Any, one: str) -> str:
    """Return such as `1 scan`, `2 scans`."""
    return f"{n} {one}" if n == 1 else f"{n} {one}s"
