"""Report the error that ends a command: as text, and with --json as an object."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextvars import ContextVar

from trainer.errors import CingulumError, told

# Of what is wrong with the command line itself, which typer finds.
USAGE = "USAGE"

_json_wanted = ContextVar("json_wanted", default=False)


def begin(arguments: Sequence[str]) -> None:
    """Remember whether this command line asks for JSON."""
    _json_wanted.set("--json" in arguments)


def end(error: CingulumError) -> None:
    """Print an error on standard error, and with --json as the last line of standard output."""
    tell(told(error))
    end_of_json(error)


def end_of_json(error: CingulumError) -> None:
    """With --json, print the object of an error that was printed as text already."""
    _print({"code": error.code, "message": error.message, "cure": error.cure, **error.objects})


def end_of_usage(message: str) -> None:
    """Print an error of the command line itself, as `end` does."""
    tell(message)
    _print({"code": USAGE, "message": message.rpartition("\n\n")[2], "cure": None})


def tell(message: str) -> None:
    """Print a line to standard error."""
    print(message, file=sys.stderr, flush=True)  # noqa: T201


def _print(error: dict[str, object]) -> None:
    if _json_wanted.get():
        print(json.dumps({"error": error}), flush=True)  # noqa: T201
