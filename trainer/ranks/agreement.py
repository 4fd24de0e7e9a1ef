"""Errors that all ranks learn of together, so that none is left waiting in a collective.

A rank that fails alone (a damaged chunk, a full disk) must not leave the loop alone. Where a failure can be
foreseen, all ranks exchange the outcome (`agree`) and end the same way, with one message; where it cannot,
the rank says what happened and ends the world (`together`).
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import TypeVar

from trainer import errors, telling
from trainer.errors import CingulumError
from trainer.ranks import failure_file
from trainer.ranks import world as worlds
from trainer.ranks.world import World

T = TypeVar("T")


class Agreed(Exception):
    """Raised on every rank at the same point; `error` is the same on all."""

    def __init__(self, error: CingulumError) -> None:
        super().__init__(str(error))
        self.error = error


def agree(world: World, action: Callable[[], T]) -> T:
    """Run `action` on every rank; if it failed on any, raise the first rank's error on all.

    An action that contains collectives may fail only where it fails on all ranks.

    Raises:
        Agreed: with the error of the lowest rank that failed.
    """
    result: T | None = None
    failure: CingulumError | None = None
    try:
        result = action()
    except CingulumError as error:
        failure = error
    except OSError as error:  # a full disk, a folder we may not write: nothing but files is touched in here
        failure = errors.of_files(error)
    said = None if failure is None else [_kind(failure), failure.message, failure.cure, failure.objects]
    outcomes = world.allgather_object(said)
    failed = [rank for rank, outcome in enumerate(outcomes) if outcome is not None]
    if failed:
        kind, message, cure, objects = outcomes[failed[0]]
        if len(failed) < world.size and world.size > 1 and failed != [0]:
            message = f"[rank {failed[0]} @ {world.hosts[failed[0]]}] {message}"
            objects = {"rank": failed[0], **objects}
        raise Agreed(errors.rebuilt(getattr(errors, kind), message, cure, objects))
    return result  # type: ignore[return-value]  # no failure: `action` returned


def together(world: World, body: Callable[[], T]) -> T | int:
    """Run `body` on every rank and turn errors into exit codes.

    An agreed error is told once, by rank 0. An error of one rank is told by that rank, which then ends the
    world; so is any other exception, with its traceback.

    Returns:
        what `body` returned, or the exit code of an agreed error.
    """
    try:
        return body()
    except Agreed as agreed:
        if world.rank == 0:
            said = agreed.error
            if not isinstance(said, errors.Stopped):
                failure_file.leave(str(said), kind=_kind(said), exit_code=said.exit_code)
            telling.end(said)
        # Nobody leaves before it is said: mpirun ends all ranks when the first one fails.
        world.barrier()
        return agreed.error.exit_code
    except CingulumError as error:
        if world.size == 1:
            raise
        failure_file.leave(str(error), kind=_kind(error), exit_code=error.exit_code, name=world.name)
        worlds.report(f"error: {error}")
        error.rank = world.rank if error.rank is None else error.rank
        telling.end_of_json(error)
        world.abort(error.exit_code)
    except Exception as error:
        if world.size == 1:
            raise
        told = f"{type(error).__name__}: {error}"
        failure_file.leave(told, kind=type(error).__name__, exit_code=1, name=world.name)
        worlds.report(worlds.fault_of_another(error) or traceback.format_exc().rstrip())
        world.abort(1)


def _kind(error: CingulumError) -> str:
    """Name of the class in the tree of errors, for a class derived from it elsewhere too."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
