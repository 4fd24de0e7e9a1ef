"""Hosts and their slots, read from a hostfile or from Slurm's variables: pure functions."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from trainer.errors import JobError

# A name that ssh and mpirun cannot take for an option, a user, a port or a pattern.
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_SLOTS = re.compile(r"slots=(\d+)")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_LARGEST_RANGE = 100_000


def parse(text: str, source: str, *, default_slots: int) -> dict[str, int]:
    """Return slots by host, in the order of the file.

    A line is `NAME`, `NAME slots=N` (as for mpirun) or `NAME:N`; what follows a # is not read. A name that
    stands on several lines, as schedulers write it, has the slots of all of them.

    Args:
        text: of the hostfile.
        source: its path, for errors.
        default_slots: of a host that says nothing.

    Raises:
        JobError: a line is not a host, or the file has no host.
    """
    hosts: dict[str, int] = {}
    named_alone: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{source}, line {number}"
        name, colon, count = words[0].partition(":")
        if not _HOST.fullmatch(name):
            raise JobError(
                f"{where}: {words[0]!r} is not the name of a host.",
                cure="Write `NAME slots=N`. A user or port belongs into ~/.ssh/config.",
            )
        options = [f"slots={count}"] if colon else []
        options += words[1:]
        slots = None
        for option in options:
            match = _SLOTS.fullmatch(option)
            if match is None or int(match[1]) < 1:
                raise JobError(
                    f"{where}: {option!r} is not understood.", cure="Write `NAME slots=N`, N from 1 on."
                )
            slots = int(match[1])
        if slots is None:
            named_alone[name] = named_alone.get(name, 0) + 1
            hosts.setdefault(name, 0)
        else:
            hosts[name] = hosts.get(name, 0) + slots
    if not hosts:
        raise JobError(f"{source}: contains no host.", cure="Write a line `NAME slots=N` for each host.")
    for name, times in named_alone.items():
        # Once alone: it says nothing of its slots. Several times: a line for each, as PBS writes it.
        hosts[name] += times if times > 1 or hosts[name] else default_slots
    return hosts


def expand(names: str) -> list[str]:
    """Return the hosts of Slurm's short form, such as `n[1-3,07-09],login`.

    Raises:
        JobError: it is not of that form.
    """
    hosts = [host for part in _parts(names) for host in _spelled_out(part)]
    for host in hosts:
        if not _HOST.fullmatch(host):
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
