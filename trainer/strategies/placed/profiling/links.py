"""Latency and rate of the links between ranks, over the messages that strategies send.

A rank sends to another, which answers with next to nothing; one pair at a time, each pair both ways.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from trainer.planning import links
from trainer.planning.links import Link
from trainer.ranks.members import MESSAGES
from trainer.ranks.world import World
from trainer.telemetry import round_trips
from trainer.telemetry.link_probe import SIZES

# Of more ranks, pairs on the same two hosts are taken as equal, and one of them is measured.
MOST_RANKS = 16

# Source and target.
Pair = tuple[int, int]


def measure(world: World, show: Callable[[int, int], None]) -> list[list[Link | None]]:
    """Return `[source][target]` for all ranks, None from a rank to itself; a collective.

    Args:
        world: started with `Members(messages=True)`, or of one rank.
        show: takes how many of how many pairs are done.
    """
    if world.links is None or world.size == 1:
        return [[None] * world.size for _ in range(world.size)]
    chosen = measured(world.hosts)
    pairs = sorted(set(chosen.values()))
    scratch = np.empty(max(SIZES), np.uint8)
    mailbox = world.links.mailbox(MESSAGES, buffer=lambda source, tag, size: scratch[:size])
    timed: dict[Pair, Link] = {}
    try:
        world.barrier()
        for number, (source, target) in enumerate(pairs):
            show(number, len(pairs))
            if world.rank == source:
                took = round_trips.measure(mailbox, world.links.workers[target])
                timed[source, target] = links.of_round_trips(took)
            elif world.rank == target:
                round_trips.answer(mailbox)
            world.barrier()
        show(len(pairs), len(pairs))
    finally:
        mailbox.close()
    everyones = world.allgather_object([[*pair, *link] for pair, link in timed.items()])
    known = {(source, target): Link(*link) for rows in everyones for source, target, *link in rows}
    return [[None if a == b else known[chosen[a, b]] for b in range(world.size)] for a in range(world.size)]


def measured(hosts: Sequence[str]) -> dict[Pair, Pair]:
    """Return for every pair of ranks, one way, the pair that is measured for it; pure.

    Args:
        hosts: of each rank.
    """
    pairs = list(itertools.permutations(range(len(hosts)), 2))
    if len(hosts) <= MOST_RANKS:
        return {pair: pair for pair in pairs}
    first: dict[tuple[str, str], Pair] = {}
    return {(a, b): first.setdefault((hosts[a], hosts[b]), (a, b)) for a, b in pairs}
