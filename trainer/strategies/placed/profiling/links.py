"""Latency and rate of the links between ranks, over the messages that strategies send.

A rank sends to another, which answers with next to nothing; one pair at a time, each pair both ways. Messages
go as they do in a step, from inside a compiled function.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from trainer.planning import links
from trainer.planning.links import Link, Timed
from trainer.ranks.exchange import Exchange, Parcel, open_exchange
from trainer.ranks.world import World
from trainer.telemetry.link_probe import SIZES, expected

# Of more ranks, pairs on the same two hosts are taken as equal, and one of them is measured.
MOST_RANKS = 16

REPEATS = 6
# Messages of a call, one after the other: starting a call is no part of a link.
MESSAGES, OF_MANY = 8, 2**16
# A further size is left out where its repeats would take longer than this at the rate seen so far.
MOST_S = 0.5
_LOAD, _ANSWER, _SIZE = 1, 2, 3

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
    timed: dict[Pair, Link] = {}
    exchange = open_exchange(world)
    try:
        world.barrier()
        for number, (source, target) in enumerate(pairs):
            show(number, len(pairs))
            if world.rank == source:
                timed[source, target] = links.of_round_trips(_ask(exchange, target))
            elif world.rank == target:
                _answer(exchange, source)
            world.barrier()
        show(len(pairs), len(pairs))
    finally:
        exchange.close()
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


def _ask(exchange: Exchange, target: int) -> list[Timed]:
    """Return seconds of a message of each size until its answer; the first call of a size is dropped."""
    found: list[Timed] = []
    for size in SIZES:
        count = _count(size)
        if (REPEATS + 1) * count * expected(found, size) > MOST_S:
            break
        _tell(exchange, target, size)
        load, answer = Parcel(target, _LOAD, size // 4, tf.float32), Parcel(target, _ANSWER, 1, tf.float32)
        call = _again(count, lambda load=load, answer=answer: _trip(exchange, load, answer))
        took = []
        for _ in range(REPEATS + 1):
            began = time.perf_counter()
            call().numpy()
            took.append(time.perf_counter() - began)
        found.append(Timed(size, statistics.median(took[1:]) / count))
    _tell(exchange, target, 0)
    return found


def _answer(exchange: Exchange, source: int) -> None:
    """Answer a rank until it has measured."""
    while size := int(exchange.move([], [], [Parcel(source, _SIZE, 1, tf.int32)])[0][0].numpy()[0]):
        load, answer = Parcel(source, _LOAD, size // 4, tf.float32), Parcel(source, _ANSWER, 1, tf.float32)
        call = _again(_count(size), lambda load=load, answer=answer: _trip_back(exchange, load, answer))
        for _ in range(REPEATS + 1):
            call().numpy()


def _tell(exchange: Exchange, target: int, size: int) -> None:
    """Say which size comes next; 0: none."""
    exchange.move([tf.constant([size])], [Parcel(target, _SIZE, 1, tf.int32)], [])


def _count(size: int) -> int:
    """Messages of a call."""
    return MESSAGES if size <= OF_MANY else 1


def _trip(exchange: Exchange, load: Parcel, answer: Parcel) -> Any:
    """Send a message, and return what to wait for until its answer is there."""
    return exchange.move([tf.zeros(load.elements)], [load], [answer])[1]


def _trip_back(exchange: Exchange, load: Parcel, answer: Parcel) -> Any:
    """Wait for a message, answer it, and return what to wait for."""
    _, there = exchange.move([], [], [load])
    with tf.control_dependencies([there]):
        return exchange.move([tf.zeros(1)], [answer], [])[1]


def _again(count: int, trip: Callable[[], Any]) -> Callable[[], Any]:
    """Return a compiled call that does so many trips, one after the other."""

    @tf.function(autograph=False)
    def call() -> Any:
        last: list[Any] = []
        for _ in range(count):
            with tf.control_dependencies(last):
                last = [trip()]
        with tf.control_dependencies(last):
            return tf.zeros(())

    return call
