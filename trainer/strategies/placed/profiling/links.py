"""Latency and rate of the links between ranks, over the messages that strategies send.

Two ranks send to each other at the same time, as in a step, where what acknowledges one way takes its part of
the other; one pair after the other. Messages go from inside a compiled function, as in a step, too.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from trainer.planning import links
from trainer.planning.links import HostLink, Timed
from trainer.ranks.exchange import Parcel, RankExchange, open_exchange
from trainer.ranks.world import World
from trainer.telemetry.link_probe import SIZES, expected

# Of more ranks, pairs on the same two hosts are taken as equal, and one of them is measured.
MOST_RANKS = 16

REPEATS = 6
# Of a call, one after the other: starting a call is no part of a link.
MESSAGES, OF_MANY = 8, 2**16
# A further size is left out where its repeats would take longer than this at the rate seen so far.
MOST_S = 0.5
_LOAD, _SIZE = 1, 2

# Source and target.
Pair = tuple[int, int]


def measure(world: World, show: Callable[[int, int], None]) -> list[list[HostLink | None]]:
    """Return `[source][target]` for all ranks, None from a rank to itself; a collective.

    Args:
        world: started with `Members(messages=True)`, or of one rank.
        show: takes how many of how many pairs are done.
    """
    if world.links is None or world.size == 1:
        return [[None] * world.size for _ in range(world.size)]
    chosen = measured(world.hosts)
    pairs = sorted({(min(pair), max(pair)) for pair in chosen.values()})
    timed: dict[Pair, HostLink] = {}
    exchange = open_exchange(world)
    try:
        world.barrier()
        for number, (first, second) in enumerate(pairs):
            show(number, len(pairs))
            if world.rank in (first, second):
                peer = second if world.rank == first else first
                found = _timed(exchange, peer, leads=world.rank == first)
                timed[world.rank, peer] = links.of_exchanges(found)
            world.barrier()
        show(len(pairs), len(pairs))
    finally:
        exchange.close()
    everyones = world.allgather_object([[*pair, *link] for pair, link in timed.items()])
    known = {(source, target): HostLink(*link) for rows in everyones for source, target, *link in rows}
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


def _timed(exchange: RankExchange, peer: int, *, leads: bool) -> list[Timed]:
    """Return seconds of an exchange with a rank, of each size; the first call of a size is dropped.

    Of the two, the one that leads decides which sizes are timed.
    """
    timed: list[Timed] = []
    for size in (*SIZES, 0):
        count = MESSAGES if size <= OF_MANY else 1
        if leads and (REPEATS + 1) * count * expected(timed, size) > MOST_S:
            size = 0
        if _agreed(exchange, peer, size, leads=leads) == 0:
            break
        parcel = Parcel(peer, _LOAD, size // 4, tf.float32)
        call = _swaps(exchange, parcel, count)
        took = []
        for _ in range(REPEATS + 1):
            began = time.perf_counter()
            call().numpy()
            took.append(time.perf_counter() - began)
        timed.append(Timed(size, statistics.median(took[1:]) / count))
    return timed


def _agreed(exchange: RankExchange, peer: int, size: int, *, leads: bool) -> int:
    """Return the size that comes next, 0 for none: of the rank that leads."""
    parcel = Parcel(peer, _SIZE, 1, tf.int32)
    if leads:
        exchange.move([tf.constant([size])], [parcel], [])
        return size
    return int(exchange.move([], [], [parcel])[0][0].numpy()[0])


def _swaps(exchange: RankExchange, parcel: Parcel, count: int) -> Callable[[], Any]:
    """Return a compiled call that sends `count` messages, and after each waits for one of the same size."""

    @tf.function(autograph=False)
    def call() -> Any:
        last: list[Any] = []
        for _ in range(count):
            with tf.control_dependencies(last):
                last = [exchange.move([tf.zeros(parcel.elements)], [parcel], [parcel])[1]]
        with tf.control_dependencies(last):
            return tf.zeros(())

    return call
