"""The `cingulum` command. Nothing heavy is imported until a command needs it.

Each command is a function in `trainer/commands/`, one file per command; it imports what it needs
inside the function, so that `cingulum --help` takes a fraction of a second.
"""

from __future__ import annotations

import os
import signal
import sys

import typer

from trainer.commands import COMMANDS
from trainer.errors import CingulumError

app = typer.Typer(
    name="cingulum",
    help="Train 3D convolutional networks on brain MRI across many GPUs.",
    epilog="Start with: make demo  ·  Then bring your own data: docs/tutorial/own-data.md",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for _name, _command in COMMANDS.items():
    app.command(_name)(_command)


def main() -> None:
    """Run the command line and end with the exit code that DESIGN.md states for the outcome."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line; return its exit code (0, 1, 2, 75, or 130 after Ctrl-C)."""
    try:
        outcome = app(args=arguments, standalone_mode=False)
    except CingulumError as error:
        tell(f"error: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        tell("interrupted; the same command goes on where it stopped")
        return 128 + signal.SIGINT
    except BrokenPipeError:  # `cingulum inspect ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except typer.Abort:
        tell("interrupted; the same command goes on where it stopped")
        return 128 + signal.SIGINT
    except Exception as error:
        # typer's own usage errors know how to show themselves, with the help's address.
        if hasattr(error, "show") and hasattr(error, "exit_code"):
            error.show()
            return int(error.exit_code)
        raise
    return outcome if isinstance(outcome, int) else 0


def tell(message: str) -> None:
    """Write a line for people to standard error."""
    print(message, file=sys.stderr, flush=True)  # noqa: T201
