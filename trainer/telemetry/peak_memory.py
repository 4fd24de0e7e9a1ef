"""The most memory that a process took while it trained: what Linux counts."""

from __future__ import annotations

import contextlib
from pathlib import Path

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class PeakMemory:
    """The most that this process had in memory between `begin` and `end`, beyond what it had before.

    Args:
        before: bytes that do not count, such as of programs and libraries; see `resident`.

    Attributes:
        most: bytes; None where nothing was counted, or the system does not tell.
    """

    def __init__(self, before: int | None) -> None:
        self.most: int | None = None
        self._before, self._is_counting = before, False

    def begin(self) -> None:
        """Count from now on; nothing happens where it counts already."""
        if not self._is_counting:
            self._is_counting = True
            with contextlib.suppress(OSError):  # then what was there before counts too
                _RESET.write_text("5")

    def end(self) -> None:
        """Take note of the most, and do not count until the next `begin`."""
        found = _read("VmHWM:") if self._is_counting else None
        self._is_counting = False
        if found is not None and self._before is not None:
            self.most = max(self.most or 0, found - self._before)


def resident() -> int | None:
    """Return the bytes that this process has in memory now; None where the system does not tell."""
    return _read("VmRSS:")


def _read(key: str) -> int | None:
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(key)), None)
