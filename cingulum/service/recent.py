"""What was made a moment ago, kept so that many who ask at once cost as much as one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_Value = TypeVar("_Value")


class Recent(Generic[_Value]):
    """Values by key, each made again when it is older than `seconds`; of two who ask, one makes it.

    Args:
        seconds: age at which a value is too old.
        most: values to keep, the newest.
    """

    def __init__(self, seconds: float, most: int = 64) -> None:
        self._seconds, self._most = seconds, most
        self._kept: dict[Hashable, tuple[float, _Value]] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], _Value]) -> _Value:
        """Return the value of a key, by `make` where it is not there or too old."""
        with self._lock:
            entry = self._kept.pop(key, None)
            now = time.monotonic()
            if entry is None or now - entry[0] >= self._seconds:
                entry = now, make()
            self._kept[key] = entry
            while len(self._kept) > self._most:
                del self._kept[next(iter(self._kept))]
            return entry[1]
