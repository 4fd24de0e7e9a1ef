"""Search a log of any size, a bounded part of it at a time."""

from __future__ import annotations

import os
import time
from pathlib import Path

from cingulum.service.detail_schema import LogMatch, LogMatches
from cingulum.service.failures import NotHere
from cingulum.service.log_part import refuse_elsewhere

_PIECE = 1 << 20
# Seconds after which the caller is told how far the search is.
ENOUGH_S = 0.5
# Bytes of a line that are shown before the text, and in all.
_BEFORE, _SHOWN = 120, 400


def search(path: Path, inside: Path, *, text: str, offset: int, most: int) -> LogMatches:
    """Return lines that hold the text, letters A to Z in any case, from byte `offset` on.

    It ends after `most` lines or ENOUGH_S, whichever comes first; `next` is where to go on. At most a few MiB
    are held, whatever the length of the log or of a line.

    Args:
        path: of the log.
        inside: the folder in which it must be, also behind links.
        text: not empty.
        offset: of the first byte.
        most: lines, at least 1.

    Raises:
        NotHere: there is no such file, or it is elsewhere.
    """
    refuse_elsewhere(path, inside)
    wanted = text.encode("utf-8", "surrogateescape").lower()
    matches: list[LogMatch] = []
    until = time.monotonic() + ENOUGH_S
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            place = min(offset, size)
            while place < size and len(matches) < most:
                file.seek(place)
                piece = file.read(_PIECE)
                is_last = place + len(piece) >= size
                used = len(piece) if is_last else _whole_lines(piece, len(wanted))
                found, used = _within(
                    piece[:used] if is_last else piece, wanted, place, used, most - len(matches)
                )
                matches += found
                place += used
                if time.monotonic() > until:
                    break
    except (FileNotFoundError, IsADirectoryError):
        raise NotHere("No output yet.", cure="It is there when the job has started.") from None
    return LogMatches(matches=matches, next=place, size=size, done=place >= size)


def _whole_lines(piece: bytes, overlap: int) -> int:
    """Return how many bytes of a piece are searched: whole lines, or of a longer line all but an overlap."""
    return piece.rfind(b"\n") + 1 or max(1, len(piece) - overlap + 1)


def _within(piece: bytes, wanted: bytes, place: int, used: int, most: int) -> tuple[list[LogMatch], int]:
    """Return the lines of a piece that begin before `used`, and how many bytes are done with."""
    lower, at = piece.lower(), 0
    found: list[LogMatch] = []
    while len(found) < most:
        at = lower.find(wanted, at)
        if at < 0 or at >= used:
            return found, used
        begin = max(piece.rfind(b"\n", 0, at) + 1, at - _BEFORE)
        end = piece.find(b"\n", at)
        end = len(piece) if end < 0 else end
        shown = piece[begin : min(end, begin + _SHOWN)].decode("utf-8", "replace")
        found.append(LogMatch(offset=place + begin, text=shown))
        at = end + 1
    return found, min(at, len(piece))
