"""A bounded part of a log that may be of any size and may grow meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

from cingulum.service.failures import NotHere
from cingulum.service.run_facts import is_inside
from cingulum.service.schema import LogPart

MOST_BYTES = 1 << 20
# Bytes of the longest character in UTF-8, without its first.
_REST = 3


def read(path: Path, inside: Path, *, offset: int, limit: int) -> LogPart:
    """Return up to `limit` bytes from `offset` on; from the end where it is negative.

    It begins with a whole line if counted from the end, else with a whole character; one that is cut at the
    end is left to the next part.

    Args:
        path: of the log.
        inside: the folder in which it must be, also behind links.
        offset: of the first byte; -n: n bytes before the end.
        limit: 1 to MOST_BYTES.

    Raises:
        NotHere: there is no such file, or it is elsewhere.
    """
    refuse_elsewhere(path, inside)
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            begin = min(size, max(0, size + offset if offset < 0 else offset))
            file.seek(begin)
            piece = file.read(limit)
    except (FileNotFoundError, IsADirectoryError):
        raise NotHere("No output yet.", cure="It is there when the job has started.") from None
    if begin:
        skipped = _to_line(piece) if offset < 0 else _to_character(piece)
        begin, piece = begin + skipped, piece[skipped:]
    piece = _whole(piece)
    return LogPart(text=piece.decode("utf-8", "replace"), offset=begin, next=begin + len(piece), size=size)


def refuse_elsewhere(path: Path, inside: Path) -> None:
    """Raise NotHere where a log is not within its folder, with links followed, or is no regular file."""
    if not is_inside(path, inside):
        raise NotHere("The log is a link to a file outside of the job's folder.", path=path.name)
    if path.is_fifo() or path.is_char_device():  # they would keep their reader waiting
        raise NotHere("The log is not a regular file.", path=path.name)


def _to_line(piece: bytes) -> int:
    """Return where the first whole line begins; where none does, the first character."""
    return piece.find(b"\n") + 1 or _to_character(piece)


def _to_character(piece: bytes) -> int:
    """Return how many bytes at the beginning belong to a character that began before."""
    return next((place for place, byte in enumerate(piece[:_REST]) if not 0x80 <= byte < 0xC0), 0)


def _whole(piece: bytes) -> bytes:
    """Return the bytes without the beginning of a character at their end."""
    for back in range(1, min(_REST, len(piece)) + 1):
        first = piece[-back]
        if first >= 0xC0:  # begins a character of 2, 3 or 4 bytes
            length = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
            return piece[:-back] if length > back and len(piece) > back else piece
        if first < 0x80:
            break
    return piece
