"""Decide what follows a start that has ended: pure functions, whatever had started it."""

from typing import NamedTuple, Optional

# Exit codes of ranks, as trainer/errors.py has them: done, bad input, saved, and another start has the run.
DONE, UNUSABLE, SAVED, FENCED = 0, 2, 75, 76

# What a start had been told, the strongest word that it was: nothing (None); to save, as its time is up
# ("time"), to be started again ("again"), or to end ("end"); to end without saving ("cancel").
Word = Optional[str]


class StartVerdict(NamedTuple):
    """Meaning of a start's end.

    Attributes:
        kind: `done`, `unusable` (bad input: never again), `fenced` (another start has the run: neither a
            failure nor a reason to start again), `cancelled`, `ended` (it was told to), `again` (it is no
            failure, and to be started again), `late` (its time was up before it had saved), `failed`.
        why: in words; "": what it has printed tells.
    """

    kind: str
    why: str = ""


def judge(code: int, word: Word) -> StartVerdict:
    """Judge the exit code (128 + n: killed by signal n) of a start that received this order."""
    unsaved = f"ended with exit code {code}"
    if code == DONE:
        return StartVerdict("done")
    if word == "cancel":
        return StartVerdict("cancelled", "by request")
    if code == FENCED:
        return StartVerdict("fenced", "another start writes its run folder")
    if word == "end":
        return StartVerdict("ended", "its state is saved" if code == SAVED else f"it {unsaved}, unsaved")
    if code == SAVED:
        return StartVerdict("again", "saved and stopped")
    if code == UNUSABLE:
        return StartVerdict("unusable")
    if word == "again":
        # Before it could save: it goes on from the checkpoint before, or from the start.
        return StartVerdict("again", f"asked to save, and {unsaved}")
    if word == "time":
        return StartVerdict("late", f"asked to save, and {unsaved}")
    return StartVerdict("failed")


def is_spent(failures: int, requeues: int) -> bool:
    """Return whether more starts have failed than are allowed."""
    return failures > requeues
