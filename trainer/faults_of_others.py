"""Errors that a rank meets only because another one has left: one line each, for the cause is elsewhere."""

from __future__ import annotations

# What Horovod says in every collective that was waiting when a rank called `shutdown` or ended by itself.
_LEFT = ("Horovod has been shut down", "HorovodInternalError")


def said_in_a_line(error: BaseException) -> str | None:
    """Return the line to show in place of a traceback; None where the error is this rank's own."""
    if not any(mark in f"{type(error).__name__}: {error}" for mark in _LEFT):
        return None
    return (
        "error: another rank left the run while this one was waiting for it in a collective. "
        "Its own message, or the launcher's, says why."
    )
