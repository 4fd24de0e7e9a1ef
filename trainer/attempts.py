"""Parts of an outcome that may fail once all that was computed is on disk: pictures, pages, cards."""

from __future__ import annotations

import contextlib
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from trainer.errors import CingulumError, Fenced, of_files

_LONGEST_REASON = 200


class _Overdue(BaseException):
    """The time of a part is up; no `Exception`, which what makes the part may catch."""


def attempt(
    part: str,
    make: Callable[[], object],
    *,
    remedy: str,
    note: Callable[[str], object],
    limit_s: float | None = None,
) -> bool:
    """Make a part; where that fails or takes too long, say so in one line. Returns whether it was made.

    Args:
        part: in words, such as "report.html".
        make: the part; whatever it raises is told and goes no further.
        remedy: the command that makes it.
        note: tells people.
        limit_s: seconds after which it is given up, on the main thread; None: no limit.

    Raises:
        Fenced: another start writes this run folder now.
    """
    try:
        with _within(limit_s):
            make()
    except Fenced:
        raise
    except _Overdue:
        why = f"it took longer than {limit_s:g} s"
    except Exception as error:
        why = reason(error)
    else:
        return True
    note(f"warning: {part} could not be made ({why}); all that was computed is kept. To make it: {remedy}")
    return False


def reason(error: Exception) -> str:
    """Return what went wrong, on one line: our own message, or type, message and line of the code."""
    if isinstance(error, OSError) and error.filename:
        error = of_files(error)
    if isinstance(error, CingulumError):
        return error.message.partition("\n")[0].rstrip(".")[:_LONGEST_REASON]
    message = str(error).partition("\n")[0][:_LONGEST_REASON]
    frames = traceback.extract_tb(error.__traceback__)
    place = f", {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{': ' if message else ''}{message}{place}"


@contextlib.contextmanager
def _within(limit_s: float | None) -> Iterator[None]:
    """Raise `_Overdue` in this context, which is the main thread's, once its time is up."""
    if limit_s is None:
        yield
        return
    is_over = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        if not is_over:
            raise _Overdue

    # Not SIGALRM: it ends a process whose MPI does not (trainer/ranks/links.py). From a thread of its own, a
    # signal also ends a wait of the main thread, such as for a file server.
    before = signal.signal(signal.SIGVTALRM, interrupt)
    timer = threading.Timer(limit_s, signal.pthread_kill, (threading.get_ident(), signal.SIGVTALRM))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        is_over = True
        timer.cancel()
        timer.join()
        signal.signal(signal.SIGVTALRM, before)
