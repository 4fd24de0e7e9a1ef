"""The allocation of Slurm that a process is in, by Slurm's variables: pure functions."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping

from jobs.schedulers.base import HOST_NAME, PROBED, Allocation
from trainer.errors import JobError

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_LARGEST_RANGE = 100_000
_PROBE = (
    *("srun", "--overlap", "--immediate=5", "--nodes=1", "--ntasks=1"),
    *("--nodelist", PROBED, "true"),
)


def allocation(environment: Mapping[str, str]) -> Allocation | None:
    """Return the allocation; None outside of one.

    Raises:
        JobError: the variables are not of Slurm's form.
    """
    names = environment.get("SLURM_JOB_NODELIST")
    if not names:
        return None
    tasks = environment.get("SLURM_TASKS_PER_NODE")
    slots = tuple(tasks_per_node(tasks)) if tasks else ()
    hidden = {"OMPI_MCA_ras": "^slurm", "OMPI_MCA_plm": "isolated"}
    return Allocation("Slurm", tuple(expand(names)), slots, _PROBE, hidden)


def expand(names: str) -> list[str]:
    """Return the hosts of Slurm's short form, such as `n[1-3,07-09],login`.

    Raises:
        JobError: it is not of that form.
    """
    hosts = [host for part in _parts(names) for host in _spelled_out(part)]
    for host in hosts:
        if not HOST_NAME.fullmatch(host):
            raise JobError(f"SLURM_JOB_NODELIST: {host!r} (in {names!r}) is not the name of a host.")
    return hosts


def tasks_per_node(text: str) -> list[int]:
    """Return the counts of Slurm's SLURM_TASKS_PER_NODE, such as `2(x3),1`.

    Raises:
        JobError: it is not of that form.
    """
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            raise JobError(f"SLURM_TASKS_PER_NODE: {text!r} is not understood.")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _parts(names: str) -> Iterator[str]:
    """Split at commas outside brackets."""
    depth, start = 0, 0
    for place, letter in enumerate(names):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            yield names[start:place]
            start = place + 1
    yield names[start:]


def _spelled_out(part: str) -> Iterator[str]:
    pieces: list[list[str]] = []
    for text, inside in re.findall(r"([^\[\]]+)|\[([^\[\]]*)\]", part):
        pieces.append([text] if text else list(_numbers(inside)))
    return ("".join(chosen) for chosen in itertools.product(*pieces))


def _numbers(inside: str) -> Iterator[str]:
    for piece in inside.split(","):
        match = _RANGE.fullmatch(piece)
        if match is None or int(match[2] or match[1]) - int(match[1]) not in range(_LARGEST_RANGE):
            raise JobError(f"SLURM_JOB_NODELIST: the range {piece!r} is not understood.")
        first, last = match[1], match[2] or match[1]
        yield from (f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1))
