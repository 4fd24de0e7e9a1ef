"""Detect a training that is saved and restarted without progress.

A start that needs all of its time to load and to save goes on at the step where the one before it stopped,
for ever. This file may be copied beside a batch script: standard library alone, no syntax after Python 3.6.
"""

import os
import re
from typing import NamedTuple, Optional

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


def begun(known: Standing, newest: Optional[int]) -> Standing:
    """Return the standing as a start begins at step `newest`; where checkpoints were removed, count anew."""
    return known if newest is None or newest == known.step else Standing(newest, 0)


def saved(known: Standing, newest: Optional[int]) -> Standing:
    """Return the standing after a start that saved at its time limit, or by itself, and leaves `newest`.

    A start that was asked to save for another reason (preemption, a requeue) is not counted: it may have come
    before the first step. Where `newest` is None, nothing is known of the start, and it is not counted.
    """
    if newest is None:
        return known
    return Standing(newest, 0) if newest > known.step else Standing(known.step, known.idle + 1)


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
