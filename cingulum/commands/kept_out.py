"""`--out` of commands that write a file which people keep and edit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer.planning.kept_files import KeptFile


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
