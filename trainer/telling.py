"""How a command that ends by an error says so: a text for people and, with --json, an object for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextvars import ContextVar

from trainer.errors import CingulumError, as_text

# Of what is wrong with the command line itself, which typer finds.
USAGE = "USAGE"

_json_wanted = ContextVar("json_wanted", default=False)


def begin(arguments: Sequence[str]) -> None:
    """Remember whether this command line asks for JSON."""
    _json_wanted.set("--json" in arguments)


def end(error: CingulumError) -> None:
    """Tell an error on standard error, and as the last line of standard output where JSON is asked for."""
    tell(as_text(error))
    end_of_json(error)


def end_of_json(error: CingulumError) -> None:
    """Print the JSON object of an error whose text is already on standard error."""
    _print({"code": error.code, "message": error.message, "cure": error.cure, **error.objects})


def end_of_usage(message: str) -> None:
    """The same of a command line that was not understood."""
    tell(message)
    _print({"code": USAGE, "message": message.rpartition("\n\n")[2], "cure": None})


def tell(message: str) -> None:
    """Write a line for people to standard error."""
    print(message, file=sys.stderr, flush=True)  # noqa: T201


def _print(error: dict[str, object]) -> None:
    if _json_wanted.get():
        print(json.dumps({"error": error}), flush=True)  # noqa: T201
