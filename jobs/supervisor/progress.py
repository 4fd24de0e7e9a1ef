"""Track the progress of a training over its starts, and detect one that is saved and restarted without any.

A start that needs all of its time to load and to save goes on at the step where the one before it stopped,
for ever.
"""

import os
import re
from pathlib import Path
from typing import NamedTuple, Optional

from jobs.supervisor.record import read_words, write

# A job ends at this many starts in a row that saved and came no step further.
STARTS = 3

_CHECKPOINT = re.compile(r"step-([0-9]{8,18})")


class Standing(NamedTuple):
    """Progress of a run over its starts.

    Attributes:
        step: of its newest checkpoint; -1: it has none.
        idle: starts in a row that saved and left no newer one.
    """

    step: int = -1
    idle: int = 0


def newest_step(run: str) -> Optional[int]:
    """Return the step of the newest checkpoint in a run folder; -1: there is none; None: the folder cannot be
    read now.
    """
    try:
        names = os.listdir(os.path.join(run, "checkpoints"))  # noqa: PTH118, PTH208
    except (FileNotFoundError, NotADirectoryError):
        return -1
    except OSError:  # a file server that does not answer says nothing about the training
        return None
    found = [_CHECKPOINT.fullmatch(name) for name in names]
    return max([int(match.group(1)) for match in found if match], default=-1)


def begun(standing: Standing, newest: Optional[int]) -> Standing:
    """Return the standing as a start begins at step `newest`; where checkpoints were removed, count anew."""
    return standing if newest is None or newest == standing.step else Standing(newest, 0)


def saved(standing: Standing, newest: Optional[int]) -> Standing:
    """Return the standing after a start that saved at its time limit, or by itself, and leaves `newest`.

    A start that was asked to save for another reason (preemption, a requeue) is not counted: it may have come
    before the first step. Where `newest` is None, nothing is known of the start, and it is not counted.
    """
    if newest is None:
        return standing
    return Standing(newest, 0) if newest > standing.step else Standing(standing.step, standing.idle + 1)


def is_stuck(now: Standing) -> bool:
    """Return whether another start would make no progress."""
    return now.idle >= STARTS


def in_words(now: Standing, limited: bool) -> str:
    """Describe a standing with `idle` starts, and what to do.

    Args:
        now: the standing after the last of them.
        limited: whether there is a time limit, at which it was asked to save.
    """
    where = f"at step {now.step}" if now.step >= 0 else "without a checkpoint"
    count = f"in {now.idle} starts in a row" if is_stuck(now) else f"in start {now.idle} of {STARTS} allowed"
    why = "the time limit leaves no time to train: use a longer --time" if limited else "its log may say why"
    return f"stopped {where}, without progress {count}; {why}"


class TaskProgress:
    """Progress of one task over its starts, in a file of the job's folder.

    Args:
        path: of that file.
        run: folder that the task trains in; None: it trains in none.
        limited: whether the job has a time limit.
    """

    def __init__(self, path: Path, run: Optional[str], limited: bool) -> None:
        self._path = path
        self._run = run
        self._limited = limited

    def begin(self) -> None:
        """Record where a start begins."""
        if self._run is not None:
            self._keep(begun(self._known(), newest_step(self._run)))

    def saved(self) -> str:
        """Check what a start has saved; return a warning where it made no progress, else ""."""
        if self._run is None:
            return ""
        now = saved(self._known(), newest_step(self._run))
        self._keep(now)
        return in_words(now, self._limited) if now.idle else ""

    def is_stuck(self) -> bool:
        """Return whether another start would make no progress."""
        return is_stuck(self._known())

    def forget(self) -> None:
        """Reset the count, when a user starts the job again."""
        self._keep(Standing(self._known().step, 0))

    def _known(self) -> Standing:
        words = read_words(self._path)
        return Standing(int(words[0]), int(words[1])) if len(words) == 2 else Standing()

    def _keep(self, now: Standing) -> None:
        write(self._path, "%d %d\n" % now)
