"""Arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from trainer.planning.kept_files import KeptFile


Command = TypeVar("Command", bound=Callable[..., None])


class SplitName(str, Enum):
    """Split of the data set."""

    train = "train"
    validation = "validation"
    test = "test"


Config = Annotated[Path, typer.Argument(help="YAML file that describes the run.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="Changes, such as train.epochs=3.")]
Shards = Annotated[Path, typer.Argument(help="Folder of the shard set.", show_default=False)]
RunOrFolds = Annotated[Path, typer.Argument(help="Run folder, such as runs/demo, or a cross-validation's.")]
Split = Annotated[SplitName, typer.Option(help="Which subjects of the run.")]
AllowCode = Annotated[
    list[Path] | None,
    typer.Option(
        "--allow-code",
        metavar="FILE",
        help="Run this Python file, for layers of the run's own: the one that it was trained with.",
    ),
]

_JOB = typer.Argument(metavar="ID", help="Such as 4711, mpirun-7, or a task: 4711_3.")
JobId = Annotated[str, _JOB]
JobIds = Annotated[list[str], _JOB]

# Of `cingulum bench`.
Model = Annotated[str, typer.Option(help="A registered network.")]
Size = Annotated[int, typer.Option(help="Edge of the volumes, in voxels.", min=8)]
Batch = Annotated[int, typer.Option(help="Samples per rank and step.", min=1)]
Width = Annotated[int, typer.Option(help="Channels of the first stage.", min=1)]
Steps = Annotated[int, typer.Option(help="Steps per measurement.", min=1)]
Volumes = Annotated[int, typer.Option(help="Volumes in an epoch.", min=1)]
Threads = Annotated[int, typer.Option(help="Threads that read and decode.", min=1)]
Repeats = Annotated[int, typer.Option(help="Measurements of each kind, in turn.", min=1)]
SyncBatchNorm = Annotated[
    bool, typer.Option("--sync-batch-norm", help="Batch norm statistics over all ranks.")
]
Data = Annotated[
    Path | None, typer.Option(help="Keep the volumes in this folder.  [default: a temporary one]")
]
Measured = Annotated[bool, typer.Option("--dry-run", help="Print what would be measured; measure nothing.")]
Figures = Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")]


def options_of(**models: str) -> Callable[[Command], Command]:
    """Let a command take the fields of models as options, in place of its parameters of these names.

    Args:
        models: 'module:Class' of each, which is imported when the command is built (from_model.py).
    """

    def mark(command: Command) -> Command:
        command.models = models  # type: ignore[attr-defined]
        return command

    return mark


# `--out` of commands that write a file which people keep and edit.


def check(out: Path | None, kind: type[KeptFile]) -> None:
    """Refuse a place where no such file can be written, before anything is computed.

    Raises:
        InputError: its folder is missing, or another file is there.
    """
    from trainer.errors import InputError

    if out is None:
        return
    if not out.absolute().parent.is_dir():
        raise InputError(
            f"{out.absolute().parent}: there is no such folder.",
            cure="Make it, or name another --out.",
            path=out,
        )
    if out.exists():
        try:
            kind.read(out)
        except InputError as error:
            raise InputError(
                f"{out}: is there already, and is not a {kind.WHAT} that can be replaced ({error.message})",
                cure="Name another file: --out FILE",
                path=out,
            ) from None
