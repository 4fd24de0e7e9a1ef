"""The commands of `cingulum` in groups, in the order in which a newcomer meets them."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

# Where each command is: a module of this package, and a function or typer application there.
GROUPS: dict[str, dict[str, str]] = {
    "Data": {
        "phantom": "data:phantom",
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
