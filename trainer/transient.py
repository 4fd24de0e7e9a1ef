"""Errors of what is done again and again for as long as a run lives, and must not end with one of them.

A file server that fails over answers with ESTALE or EIO for a moment, a disk is full until somebody makes
room. Each such error is counted, a row of them is said once when it is over, and named while it lasts.
"""

from __future__ import annotations

import contextlib
import errno
import sys
import time
from collections.abc import Callable, Iterator

# After so many errors in a row they are said while they last.
LASTING = 5
# What a file system may answer now and not a while later: it is busy, fails over, is full, or this process
# has too much open.
PASSING = frozenset(
    {
        *(errno.EIO, errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.ESTALE, errno.ETIMEDOUT, errno.EREMOTEIO),
        *(errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS),
    }
)


def warn(line: str) -> None:
    """Write a line to standard error."""
    sys.stderr.write(f"warning: {line}\n")
    sys.stderr.flush()


class TransientErrors:
    """Errors of one thing that is tried again.

    Args:
        what: fails, such as "/runs/a/.writing-3f/heartbeat: could not be written".
        kinds: of errors that are survived.
        consequence: of errors that last, a sentence; "": none.
        say: shows people a line.

    Attributes:
        count: of all errors so far.
        in_a_row: errors since it last worked.
    """

    def __init__(
        self,
        what: str,
        *,
        kinds: tuple[type[Exception], ...] = (OSError,),
        consequence: str = "",
        say: Callable[[str], None] = warn,
    ) -> None:
        self.count = self.in_a_row = 0
        self._what, self._kinds, self._say = what, kinds, say
        self._consequence = f" {consequence}" if consequence else ""
        self._began = 0.0
        self._why = ""

    @contextlib.contextmanager
    def survived(self) -> Iterator[None]:
        """Go on after this context whether what is tried in it works or not."""
        try:
            yield
        except self._kinds as error:
            self._failed(error)
        else:
            self._worked()

    def _failed(self, error: Exception) -> None:
        if not self.in_a_row:
            self._began = time.monotonic()
        self.count += 1
        self.in_a_row += 1
        self._why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        if self.in_a_row == LASTING:
            self._tell(f"{self._what} for {self._seconds} ({self._why}); tried again.{self._consequence}")

    def _worked(self) -> None:
        if self.in_a_row:
            times = "once" if self.in_a_row == 1 else f"{self.in_a_row} times"
            self._tell(f"{self._what} {times} in {self._seconds} ({self._why}); it works again.")
        self.in_a_row = 0

    @property
    def _seconds(self) -> str:
        return f"{time.monotonic() - self._began:.0f} s"

    def _tell(self, line: str) -> None:
        # Standard error may be what fails: a terminal that was closed, a log on a full disk.
        with contextlib.suppress(OSError, ValueError):
            self._say(line)
