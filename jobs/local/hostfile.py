"""Hosts and their slots, read from a hostfile: pure functions."""

from __future__ import annotations

import re

from jobs.schedulers.base import HOST_NAME
from trainer.errors import JobError

_SLOTS = re.compile(r"slots=(\d+)")


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
        if not HOST_NAME.fullmatch(name):
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
