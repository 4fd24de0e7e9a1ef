"""A configuration that is given as text, for what reads files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from trainer.errors import CingulumError

NAME = "configuration"


@contextmanager
def as_file(text: str) -> Iterator[Path]:
    """Open a private file with this text, for as long as it is needed; errors name it `configuration`."""
    with TemporaryDirectory(prefix="cingulum-") as folder:
        path = Path(folder) / NAME
        path.write_text(text, encoding="utf-8")
        try:
            yield path
        except CingulumError as error:
            error.message = error.message.replace(str(path), NAME)
            error.cure = error.cure and error.cure.replace(str(path), NAME)
            error.path = None if error.path == path else error.path
            raise
