"""Bytes on a host's network interfaces, as its kernel or its adapter counts them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import psutil

# Interface -> bytes sent and received since some time in the past.
Counters = dict[str, tuple[int, int]]

_INFINIBAND = Path("/sys/class/infiniband")
_WORD = 4  # bytes that InfiniBand's data counters count in


def read(infiniband: Path = _INFINIBAND) -> Counters:
    """Return all counters of this host (of this network namespace), loopback and headers included.

    What goes over InfiniBand without the kernel is in its ports' own counters, as `ADAPTER/PORT`; tried on a
    made-up tree of files, not on such hardware.
    """
    kernel = psutil.net_io_counters(pernic=True, nowrap=True)
    found: Counters = {name: (count.bytes_sent, count.bytes_recv) for name, count in kernel.items()}
    for port in sorted(infiniband.glob("*/ports/*")):
        with contextlib.suppress(OSError, ValueError):  # a port without counters
            sent, received = (
                int((port / "counters" / f"port_{way}_data").read_text()) * _WORD for way in ("xmit", "rcv")
            )
            found[f"{port.parents[1].name}/{port.name}"] = (sent, received)
    return found


def between(before: Counters, after: Counters) -> dict[str, Mapping[str, int]]:
    """Return interface -> {"sent", "received"} bytes between two readings; idle interfaces are left out."""
    found: dict[str, Mapping[str, int]] = {}
    for name, (sent, received) in after.items():
        sent_before, received_before = before.get(name, (0, 0))
        moved = {"sent": sent - sent_before, "received": received - received_before}
        if any(moved.values()):
            found[name] = moved
    return found
