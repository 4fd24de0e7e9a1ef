"""Parse times and memory as Slurm's users write them."""

from __future__ import annotations

import re

from trainer.errors import JobError

_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_MIB = {"": 1.0, "K": 2**-10, "M": 1.0, "G": 2.0**10, "T": 2.0**20}


def minutes(text: str) -> int:
    """Return whole minutes, rounded up, of `90`, `30:00`, `12:00:00`, `2-00`, `2-12:30` (man sbatch), `12h`
    or `2d`.

    Raises:
        JobError: not such a time, or none.
    """
    given = text.strip()
    seconds = _with_unit(given)
    if seconds is None:
        seconds = _clock(given)
    if not seconds:
        raise JobError(
            f"--time {text!r}: is not a duration.",
            cure="Give minutes, HH:MM:SS, D-HH:MM or a unit: 90, 12:00:00, 12h",
        )
    return -(-seconds // 60)


def mebibytes(text: str) -> int:
    """Return MiB, rounded up, of `4000`, `4000M`, `16G`, `16 GiB` (Slurm's G are GiB, too).

    Raises:
        JobError: not such a size, or none.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]?)(?:i?B)?", text.strip(), re.I)
    size = float(match[1]) * _MIB[match[2].upper()] if match else 0.0
    if size <= 0:
        raise JobError(f"--memory {text!r}: is not a size.", cure="Give MiB, or a unit: 4000, 16G")
    return int(-(-size // 1))


def told(seconds: float) -> str:
    """Format a time as squeue does: `4:07`, `12:00:00`, `2-03:00:00`."""
    left = max(0, round(seconds))
    days, left = divmod(left, 86400)
    hours, left = divmod(left, 3600)
    if days:
        return f"{days}-{hours:02d}:{left // 60:02d}:{left % 60:02d}"
    return f"{hours}:{left // 60:02d}:{left % 60:02d}" if hours else f"{left // 60}:{left % 60:02d}"


def _with_unit(text: str) -> int | None:
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|m|min|h|d)", text)
    return None if match is None else int(-(-float(match[1]) * _UNITS[match[2]] // 1))


def _clock(text: str) -> int:
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if match is None:
        return 0
    first, second, third = int(match[2]), int(match[3] or 0), int(match[4] or 0)
    if match[1] is not None:  # D-HH, D-HH:MM, D-HH:MM:SS
        return int(match[1]) * 86400 + first * 3600 + second * 60 + third
    # HH:MM:SS with two colons, else MM or MM:SS.
    return first * 3600 + second * 60 + third if match[4] else first * 60 + second
