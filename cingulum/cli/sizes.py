"""Figures of tables: seconds, bytes and FLOPs with three digits and a unit."""

from __future__ import annotations


def time(seconds: float) -> str:
    """Return seconds such as `38.3 ms`."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{_three(seconds / scale)} {unit}"
    return f"{seconds * 1e6:.0f} us"


def size(size: float) -> str:
    """Return bytes such as `6.75 MiB`; `-` for none."""
    unit, scale = "B", 1
    for name in ("KiB", "MiB", "GiB", "TiB"):
        if size >= 1024 * scale:
            unit, scale = name, 1024 * scale
    return f"{_three(size / scale)} {unit}" if size else "-"


def flops(flops: float) -> str:
    """Return FLOPs such as `1.21 G`; `-` for none."""
    for unit, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if flops >= scale:
            return f"{_three(flops / scale)} {unit}"
    return f"{flops:.0f}" if flops else "-"


def _three(value: float) -> str:
    """Three digits; four from 1000 on."""
    return f"{value:.{0 if value >= 99.95 else 1 if value >= 9.995 else 2}f}"
