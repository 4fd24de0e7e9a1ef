"""The commands of `cingulum` in groups, in the order in which a newcomer meets them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup

from cingulum.cli.advise import advise
from cingulum.cli.augment import augment
from cingulum.cli.bench import bench
from cingulum.cli.crossval import crossval
from cingulum.cli.data import inspect_shards, leaks, phantom, scratch, verify_shards
from cingulum.cli.doctor import doctor
from cingulum.cli.explain import baseline, explain
from cingulum.cli.import_ import import_images
from cingulum.cli.inference import evaluate, export, predict
from cingulum.cli.job_actions import cancel, defer, hold, release, requeue, share
from cingulum.cli.job_output import logs, wait
from cingulum.cli.jobs import jobs, show
from cingulum.cli.models import models
from cingulum.cli.plan import plan
from cingulum.cli.profile import profile
from cingulum.cli.results import compare, diagnose, report
from cingulum.cli.serve import serve
from cingulum.cli.simulate import simulate
from cingulum.cli.submit import submit
from cingulum.cli.testbed import testbed
from cingulum.cli.train import train

Command = Callable[..., Any] | typer.Typer

GROUPS: dict[str, dict[str, Command]] = {
    "Data": {
        "phantom": phantom,
        "import": import_images,
        "inspect": inspect_shards,
        "verify": verify_shards,
        "leaks": leaks,
        "baseline": baseline,
        "augment": augment,
        "scratch": scratch,
    },
    "Training": {"models": models, "train": train, "crossval": crossval},
    "Results": {
        "evaluate": evaluate,
        "compare": compare,
        "diagnose": diagnose,
        "predict": predict,
        "export": export,
        "explain": explain,
        "report": report,
    },
    "Jobs": {
        "submit": submit,
        "jobs": jobs,
        "show": show,
        "logs": logs,
        "wait": wait,
        "cancel": cancel,
        "requeue": requeue,
        "hold": hold,
        "release": release,
        "defer": defer,
        "share": share,
        "serve": serve,
    },
    "Forecasts": {"profile": profile, "plan": plan, "simulate": simulate, "advise": advise},
    "This installation": {"doctor": doctor, "bench": bench, "testbed": testbed},
}
COMMANDS: dict[str, Command] = {name: command for group in GROUPS.values() for name, command in group.items()}


class CommandGroups(TyperGroup):
    """Lists the commands in --help by group."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each group, names and descriptions in the same columns in all."""
        width = max(map(len, self.commands))
        for title, group in GROUPS.items():
            rows = [
                (name.ljust(width), self.commands[name].get_short_help_str(formatter.width - width - 6))
                for name in group
            ]
            with formatter.section(title):
                formatter.write_dl(rows)
