"""The `cingulum` command. Heavy modules are imported only when a command needs them.

Groups stand here in the order in which a newcomer meets them; each command is a function in the file of its
group. It imports what it needs inside the function, so that `cingulum --help` takes a fraction of a second.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from cingulum.cli import usage
from trainer import quiet, telling
from trainer.errors import CingulumError, Stopped, of_files
from trainer.ranks import failure_file
from trainer.telling import tell

if TYPE_CHECKING:
    from sys import UnraisableHookArgs


# Where each command is: a module of this package, and a function or typer application there.
GROUPS: dict[str, dict[str, str]] = {
    "Data": {
        "phantom": "data:phantom",
        "dicom": "dicom:dicom",
        "import": "import_:import_images",
        "inspect": "data:inspect_shards",
        "verify": "data:verify_shards",
        "leaks": "data:leaks",
        "baseline": "explain:baseline",
        "augment": "augment:augment",
        "scratch": "data:scratch",
    },
    "Training": {"models": "models:models", "train": "train:train", "crossval": "crossval:crossval"},
    "Results": {
        "evaluate": "inference:evaluate",
        "compare": "results:compare",
        "diagnose": "results:diagnose",
        "predict": "inference:predict",
        "export": "inference:export",
        "explain": "explain:explain",
        "report": "results:report",
    },
    "Jobs": {
        "submit": "submit:submit",
        "jobs": "jobs:jobs",
        "show": "jobs:show",
        "logs": "job_output:logs",
        "wait": "job_output:wait",
        "cancel": "job_actions:cancel",
        "requeue": "job_actions:requeue",
        "hold": "job_actions:hold",
        "release": "job_actions:release",
        "defer": "job_actions:defer",
        "share": "job_actions:share",
        "serve": "serve:serve",
    },
    "Forecasts": {
        "profile": "profile:profile",
        "plan": "plan:plan",
        "simulate": "simulate:simulate",
        "advise": "advise:advise",
    },
    "This installation": {"doctor": "doctor:doctor", "bench": "bench:bench", "testbed": "testbed:testbed"},
}
COMMANDS = {name: place for group in GROUPS.values() for name, place in group.items()}


def _source(name: str) -> Any:
    """Return a command's function or application, whose file is imported only now."""
    module, _, attribute = COMMANDS[name].partition(":")
    return getattr(importlib.import_module(f"cingulum.cli.{module}"), attribute)


def _built(name: str) -> Any:
    source = _source(name)
    if isinstance(source, typer.Typer):
        command = typer.main.get_command(source)
        command.name = name
        return command
    if hasattr(source, "models"):
        from cingulum.cli.from_model import with_options

        source = with_options(source)
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(name)(source)
    return typer.main.get_command(app)


class Commands(Mapping[str, Any]):
    """The commands by name, each built when it is asked for: all together take a fifth of a second."""

    def __init__(self) -> None:
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in COMMANDS:
            raise KeyError(name)
        if name not in self._built:
            self._built[name] = _built(name)
        return self._built[name]

    def __contains__(self, name: object) -> bool:
        return name in COMMANDS

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class CommandGroups(TyperGroup):
    """Lists the commands in --help by group."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = Commands()  # type: ignore[assignment]  # nobody adds to it

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each group, names and descriptions in the same columns in all."""
        width = max(map(len, COMMANDS))
        for title, group in GROUPS.items():
            rows = [(name.ljust(width), _in_short(name, formatter.width - width - 6)) for name in group]
            with formatter.section(title):
                formatter.write_dl(rows)


def _in_short(name: str, columns: int) -> str:
    """The first sentence of a command's description, without building its options."""
    source = _source(name)
    text = source.info.help if isinstance(source, typer.Typer) else inspect.getdoc(source)
    return TyperCommand(name, help=text).get_short_help_str(columns)


app = typer.Typer(
    name="cingulum",
    cls=CommandGroups,
    help="Train 3D convolutional networks on brain MRI across many GPUs.",
    epilog="Start with: make demo  ·  Then bring your own data: docs/tutorial/own-data.md",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"cingulum {version('cingulum')}")
        raise typer.Exit


@app.callback()
def _of_all_commands(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    pass


# What to do after Ctrl-C, where there is something to lose.
GOING_ON = {
    "phantom": "; the same command goes on where it stopped",
    "dicom": "; the same command goes on where it stopped",
    "import": "; the same command goes on where it stopped",
    "predict": "; with --output or --out, the same command and --resume goes on where it stopped",
    "train": "; the same command with --resume goes on from the last checkpoint",
    "crossval": "; the same command goes on from the last checkpoints",
    "bench scaling": "; the same command goes on where it stopped",
    "logs": "; the job goes on",
    "serve": "; jobs go on",
    "wait": "; the job goes on, and the same command waits for it again",
    "submit": "; `cingulum jobs` lists what was submitted",
}


def main() -> None:
    """Run the command line and end with the exit code of the outcome (DESIGN.md)."""
    raise_again()
    quiet.leave_out_what_keras_can_do_without()
    sys.exit(run(sys.argv[1:]))


@functools.cache
def command_line() -> Any:
    """Return what parses command lines; its commands are built when they are asked for."""
    return typer.main.get_command(app)


def run(arguments: list[str]) -> int:
    """Run one command line; return its exit code (0, 1, 2, 75, 76, or 130 after Ctrl-C)."""
    # Not `app(arguments)`: that takes Ctrl-C and closed pipes for itself, and says nothing of them.
    group = command_line()
    telling.begin(arguments)
    try:
        with group.make_context("cingulum", list(arguments)) as context:
            outcome = group.invoke(context)
        sys.stdout.flush()  # here a closed pipe can still be answered
    except CingulumError as error:
        telling.end(error)
        if not isinstance(error, Stopped):
            failure_file.leave(str(error), kind=type(error).__name__, exit_code=error.exit_code)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        command = next((c for c in (" ".join(arguments[:2]), *arguments[:1]) if c in GOING_ON), "")
        tell(f"interrupted{GOING_ON.get(command, '')}")
        return 128 + signal.SIGINT
    except BrokenPipeError:  # `cingulum inspect ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # Rich met it first
            return 0
        raise
    except OSError as error:
        if not error.filename:
            raise
        # What remains is the file system: no permission, a folder for a file, a full disk.
        failure = of_files(error)
        telling.end(failure)
        failure_file.leave(str(failure), kind=type(failure).__name__, exit_code=failure.exit_code)
        return failure.exit_code
    except typer.Exit as ended:
        return int(ended.exit_code)
    except Exception as error:
        if hasattr(error, "show") and hasattr(error, "exit_code"):  # a usage error of typer's
            if type(error).__name__ == "NoArgsIsHelpError":
                error.show()  # the help itself
            else:
                telling.end_of_usage(usage.said_of(error, arguments, group))
                _say_which_key(error, arguments)
            return int(error.exit_code)
        raise
    return outcome if isinstance(outcome, int) else 0


def _say_which_key(error: Any, arguments: list[str]) -> None:
    """Print, after an unknown option of a command that takes `key=value`, the key that may be meant."""
    option, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    if option is None or context is None or "overrides" not in {p.name for p in context.command.params}:
        return
    from cingulum.cli.usage import advice

    said = advice(option, arguments)
    if said:
        tell(said)


# Raise Ctrl-C again where Python has dropped it.
#
# Python raises `KeyboardInterrupt` wherever the main thread is. In a destructor or a handler around a fork
# it cannot be passed on: Python prints "Exception ignored in ..." and the program continues. A fork is the
# likely place: a signal that comes while the kernel copies the process is raised in `logging`'s handler
# right after it (CPython's `run_at_forkers`), where `subprocess.Popen` was given a `preexec_fn`. Of 400
# signals within 8 ms of such a start from a process of 300 MB, 341 were dropped.


# By then the main thread has left that place. If it is in another one, all of this happens again.
_AGAIN_S = 0.02


def raise_again() -> None:
    """Send this process's main thread another SIGINT for each one that Python dropped, from now on."""
    usual = sys.unraisablehook

    def hook(dropped: UnraisableHookArgs) -> None:
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            threading.Thread(target=_interrupt, name="interrupt", daemon=True).start()
        else:
            usual(dropped)

    sys.unraisablehook = hook


def _interrupt() -> None:
    time.sleep(_AGAIN_S)
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, signal.SIGINT)
