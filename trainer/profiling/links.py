"""Latency and rate of the links between ranks, over the messages that strategies send.

A rank sends to another, which answers with next to nothing; one pair at a time, each pair both ways.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np

from trainer.planning import links
from trainer.planning.links import Link, Timed
from trainer.ranks.members import MESSAGES
from trainer.ranks.messages import Mailbox
from trainer.ranks.world import World
from trainer.telemetry.link_probe import SIZES, expected

REPEATS = 7
# A further size is left out where its repeats would take longer than this at the rate seen so far.
MOST_S = 0.3
# Of more ranks, pairs on the same two hosts are taken as equal, and one of them is measured.
MOST_RANKS = 16
_LOAD, _ANSWER, _END = 1, 2, 3

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
                round_trips = _send(mailbox, world.links.workers[target])
                timed[source, target] = links.of_round_trips(round_trips)
            elif world.rank == target:
                _answer(mailbox, world.links.workers[source])
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


def _send(mailbox: Mailbox, process: int) -> list[Timed]:
    """Time messages of each size until their answer; the first of a size is dropped."""
    load = np.zeros(max(SIZES), np.uint8)
    found: list[Timed] = []
    for size in SIZES:
        if (REPEATS + 1) * expected(found, size) > MOST_S:
            break
        took = []
        for _ in range(REPEATS + 1):
            began = time.perf_counter()
            mailbox.send(process, _LOAD, load[:size])
            mailbox.wait()
            took.append(time.perf_counter() - began)
        found.append(Timed(size, statistics.median(took[1:])))
    mailbox.send(process, _END, load[:1])
    return found


def _answer(mailbox: Mailbox, process: int) -> None:
    answer = np.zeros(1, np.uint8)
    while mailbox.wait().tag != _END:
        mailbox.send(process, _ANSWER, answer)
