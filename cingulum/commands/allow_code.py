"""The option of the commands that open a run's network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

AllowCode = Annotated[
    list[Path] | None,
    typer.Option(
        "--allow-code",
        metavar="FILE",
        help="Run this Python file, for layers of the run's own: the one that it was trained with.",
    ),
]
