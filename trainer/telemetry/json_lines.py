"""Files of JSON lines that grow while a run is trained: adding to them, cutting them back, reading them."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.atomic import write_bytes
from trainer.errors import RunError


class LineFile:
    """The lines that this process adds to one of the files, from one start of the run.

    The file is made anew from what is there, so that a process of an earlier start, which still holds the
    one of before, adds to a file without a name.

    Args:
        path: of the file.
        staging: of the lease on the run folder, which rank 0 holds; None: there is no lease.

    Raises:
        OSError: the file cannot be made; FileNotFoundError where the run was taken over by another start.
    """

    def __init__(self, path: Path, staging: Path | None) -> None:
        if staging is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            return
        beside = staging / path.name
        content = path.read_bytes() if path.exists() else b""
        self._file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        try:
            _write_whole(self._file, content)
            beside.rename(path)
        except BaseException:
            self.close()
            raise

    def append(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Add whole lines, with one write.

        Raises:
            OSError: they cannot be written; none of them is there, and they may be added again.
        """
        if not lines:
            return
        before = os.fstat(self._file).st_size
        try:
            _write_whole(self._file, "".join(json.dumps(line) + "\n" for line in lines).encode())
            # NFS sends to its server what was written when a descriptor is closed, whichever.
            os.close(os.dup(self._file))
        except OSError:
            with contextlib.suppress(OSError):  # half a line would join the next one
                os.ftruncate(self._file, before)
            raise

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):
            os.close(self._file)


def _write_whole(file: int, content: bytes) -> None:
    written = os.write(file, content)
    if written < len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def cut(folder: Path, step: int) -> None:
    """Drop the lines of steps after `step`, and incomplete lines, from all files of a run folder.

    Raises:
        OSError: a file cannot be read or written.
    """
    for path in sorted((folder / "telemetry").glob("*.jsonl")):
        lines = path.read_bytes().split(b"\n")[:-1]
        write_bytes(path, b"".join(line + b"\n" for line in lines if _is_until(step, line)))


def _is_until(step: int, line: bytes) -> bool:
    try:
        return bool(json.loads(line)["step"] <= step)
    except (ValueError, KeyError, TypeError):  # a power cut may leave anything
        return False


def read(path: Path) -> list[dict[str, Any]]:
    """Return the JSON objects of a file, one per line; an incomplete last line is left out.

    Raises:
        RunError: the file cannot be read, or a line of it is not a JSON object.
    """
    try:
        whole, _, _ = path.read_bytes().rpartition(b"\n")
        lines = [json.loads(line) for line in whole.splitlines()]
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: is damaged ({error}).") from None
    if not all(isinstance(line, dict) for line in lines):
        raise RunError(f"{path}: is damaged (a line is not a JSON object).")
    return lines


def tail(path: Path, most_bytes: int) -> list[dict[str, Any]]:
    """Return the JSON objects of the last whole lines of a file, as far as they fit into `most_bytes`.

    For those who look at a run that goes on: lines that are damaged are left out, and so is a file that is
    not there.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            begin = max(0, size - most_bytes)
            file.seek(begin)
            lines = file.read(most_bytes).split(b"\n")
    except OSError:
        return []
    found = []
    for line in lines[1 if begin else 0 : -1]:
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return [line for line in found if isinstance(line, dict)]
