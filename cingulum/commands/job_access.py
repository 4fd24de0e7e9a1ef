"""What the commands about jobs share: `jobs.requests.known`, with warnings on standard error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from jobs.requests import known
from jobs.requests.known import launcher_here, launcher_of, started

if TYPE_CHECKING:
    from jobs.job import Job
    from jobs.store import Store

__all__ = ["current", "launcher_here", "launcher_of", "opened", "rebuilt", "refresh", "started", "warn"]


def warn(text: str) -> None:
    """Tell people."""
    typer.echo(text, err=True)


def opened() -> Store:
    """As `known.opened`."""
    return known.opened(warn)


def rebuilt() -> Store:
    """As `known.rebuilt`."""
    return known.rebuilt(warn)


def refresh(store: Store, jobs: Sequence[Job] | None = None, *, warned: set[str] | None = None) -> None:
    """As `known.refresh`."""
    known.refresh(store, jobs, warn=warn, warned=warned)


def current(store: Store, text: str, *, warned: set[str] | None = None) -> tuple[Job, int | None]:
    """As `known.current`."""
    return known.current(store, text, warn=warn, warned=warned)
