"""Seconds in words."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Return such as '412 ms', '1.32 s', '0.4 ms'."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.01 else f"{seconds * 1e3:.1f} ms"
