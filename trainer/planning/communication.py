"""Bytes and seconds of every way to combine gradients: reductions over ranks, and parameter servers.

Pure. A way is a list of rounds; a round is a list of flows, which share the links and all end before the
next round starts. Bytes on each host's interface follow by adding up, seconds from each round's busiest
direction of a link: links are full duplex, and the switch between them is never the bottleneck.

With n ranks on hosts of their own, M bytes of gradients and links of B bytes per second each way:

    ring                        2(n-1)/n M sent by each rank            2(n-1)M/(nB)
    one server                  nM sent and received by the server      nM/B
    k separate servers          nM/k by each server                     max(n/k, 1) M/B
    n colocated servers         2(n-1)/n M by each rank                 2(n-1)M/(nB)

A separate server's seconds hold where weights go out while gradients still come in, in small pieces; without
that both ways follow each other, and it takes twice as long. Colocated servers keep both ways busy anyway.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import get_args

from trainer.config.strategy import Algorithm
from trainer.errors import ConfigError
from trainer.planning.frames import BARE as BARE
from trainer.planning.frames import ETHERNET as ETHERNET
from trainer.planning.frames import Frames
from trainer.planning.frames import InterfaceBytes as InterfaceBytes

ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)


@dataclasses.dataclass(frozen=True)
class Flow:
    """Bytes that one process sends to another.

    Attributes:
        source: number of the sending process.
        target: number of the receiving process.
        size: bytes of payload; a fraction where a part of M is no whole number.
    """

    source: int
    target: int
    size: float


Rounds = tuple[tuple[Flow, ...], ...]


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What one exchange of all gradients costs.

    Attributes:
        interfaces: of each host, in order, bytes that its interface counts.
        seconds: from the first byte to the last; computing and waiting for others not included.
    """

    interfaces: tuple[InterfaceBytes, ...]
    seconds: float


def reduction(algorithm: Algorithm, size: float, ranks: int) -> Rounds:
    """Return the messages of one all-reduce.

    Args:
        algorithm: `ring`, `segmented-ring`: every rank passes n-th parts to its neighbour, 2(n-1) times.
            `recursive-doubling`: pairs swap all they have, over distances 1, 2, 4, ...; ranks above the
            largest power of two hand theirs to a partner first and get the sum at the end. `tree`: a binomial
            tree up to rank 0, and down again. `reduce-broadcast` and `gather`: all send theirs to rank 0,
            which answers each; they differ in who adds up, MPI or we.
        size: bytes of gradients, M.
        ranks: the world size, n.

    Raises:
        ConfigError: no such algorithm, or no rank.
    """
    if ranks < 1:
        raise ConfigError(f"An all-reduce needs at least one rank, not {ranks}.", cure="Give 1 or more.")
    if algorithm not in ALGORITHMS:
        raise ConfigError(f"There is no reduction {algorithm!r}.", cure=f"One of {', '.join(ALGORITHMS)}.")
    if ranks == 1:
        return ()
    if algorithm in ("ring", "segmented-ring"):
        return (_around(size / ranks, ranks),) * (2 * (ranks - 1))
    if algorithm in ("reduce-broadcast", "gather"):
        up = tuple(Flow(rank, 0, size) for rank in range(1, ranks))
        return (up, _reversed(up))
    if algorithm == "tree":
        levels = tuple(_tree(size, ranks))
        return (*levels, *(_reversed(level) for level in reversed(levels)))
    return tuple(_doubling(size, ranks))


def servers(shares: Sequence[float], workers: int, *, colocated: bool = False, piece: float = 0.0) -> Rounds:
    """Return the messages of one synchronous update through parameter servers: gradients in, weights out.

    Processes are workers 0 ... n-1, then the servers; colocated, server j is in the process of worker j.
    Weights of a piece go out as soon as its gradients are in: only the first piece's way in and the last
    one's way out have the links for themselves.

    Args:
        shares: bytes of parameters of each server; they add up to M.
        workers: number of workers, n.
        colocated: whether servers are in the first k workers' processes.
        piece: bytes of a piece; 0: negligible. A server whose share is one piece does not overlap its two
            ways at all.

    Raises:
        ConfigError: no worker, no server, or more colocated servers than workers.
    """
    if workers < 1 or not shares:
        raise ConfigError(f"{workers} workers and {len(shares)} servers: at least one of each is needed.")
    if colocated and len(shares) > workers:
        raise ConfigError(
            f"{len(shares)} servers cannot be colocated with {workers} workers.",
            cure="Take as many servers as workers, or fewer.",
        )

    def push(sizes: Sequence[float]) -> tuple[Flow, ...]:
        return tuple(
            Flow(worker, server if colocated else workers + server, size)
            for server, size in enumerate(sizes)
            for worker in range(workers)
            if size
        )

    first = push([min(piece, share) for share in shares])
    others = push([share - min(piece, share) for share in shares])
    rounds = (first, (*others, *_reversed(others)), _reversed(first))
    return tuple(flows for flows in rounds if flows)


def payload(rounds: Rounds, processes: int) -> tuple[InterfaceBytes, ...]:
    """Return the bytes of payload that each process sends to and receives from others."""
    sent, received = [0.0] * processes, [0.0] * processes
    for flows, times in repeated(rounds):
        for flow in flows:
            if flow.source == flow.target:  # a colocated server and its own worker
                continue
            sent[flow.source] += times * flow.size
            received[flow.target] += times * flow.size
    return tuple(map(InterfaceBytes, sent, received))


def predict(
    rounds: Rounds,
    hosts: Sequence[int],
    *,
    bytes_per_second: float,
    frames: Frames = ETHERNET,
    latency_s: float = 0.0,
) -> Prediction:
    """Return the bytes on each host's interface and the seconds of an exchange.

    Args:
        rounds: of `reduction` or `servers`.
        hosts: host of each process, numbers from 0; what stays on a host crosses no link.
        bytes_per_second: of each host's link, each way.
        frames: what is added to the payload.
        latency_s: added to each round.

    Raises:
        ConfigError: the rate is not positive.
    """
    if bytes_per_second <= 0:
        raise ConfigError(f"bytes_per_second must be > 0, not {bytes_per_second}.")
    totals = [InterfaceBytes() for _ in range(max(hosts) + 1)]
    seconds = 0.0
    for flows, times in repeated(rounds):
        between: dict[tuple[int, int], float] = collections.defaultdict(float)
        for flow in flows:
            between[hosts[flow.source], hosts[flow.target]] += flow.size
        pairs = {
            (min(pair), max(pair)): InterfaceBytes(
                between[min(pair), max(pair)], between[max(pair), min(pair)]
            )
            for pair in list(between)
            if pair[0] != pair[1]
        }
        busiest = _busiest(_per_host(pairs, len(totals)))
        crossing = _per_host({pair: frames.on_wire(one, busiest) for pair, one in pairs.items()}, len(totals))
        totals = [_add(total, more, times) for total, more in zip(totals, crossing, strict=True)]
        seconds += times * (latency_s + _busiest(crossing) / bytes_per_second)
    return Prediction(tuple(totals), seconds)


def _per_host(pairs: Mapping[tuple[int, int], InterfaceBytes], hosts: int) -> list[InterfaceBytes]:
    """Return the traffic of each host, from that of each pair as the first of the two sees it."""
    totals = [InterfaceBytes() for _ in range(hosts)]
    for (one, other), traffic in pairs.items():
        totals[one] = _add(totals[one], traffic)
        totals[other] = _add(totals[other], InterfaceBytes(traffic.received, traffic.sent))
    return totals


def _busiest(hosts: Sequence[InterfaceBytes]) -> float:
    return max(max(host) for host in hosts)


def _around(size: float, ranks: int) -> tuple[Flow, ...]:
    return tuple(Flow(rank, (rank + 1) % ranks, size) for rank in range(ranks))


def _reversed(flows: Sequence[Flow]) -> tuple[Flow, ...]:
    return tuple(Flow(flow.target, flow.source, flow.size) for flow in flows)


def _tree(size: float, ranks: int) -> Iterator[tuple[Flow, ...]]:
    """Levels of a binomial tree, the leaves' first."""
    distance = 1
    while distance < ranks:
        yield tuple(Flow(rank, rank - distance, size) for rank in range(distance, ranks, 2 * distance))
        distance *= 2


def _doubling(size: float, ranks: int) -> Iterator[tuple[Flow, ...]]:
    power = 1 << (ranks.bit_length() - 1)
    # The first 2(n - power) ranks pair up, so that a power of two is left: the odd ones of them and the rest.
    pairs = tuple(Flow(2 * i, 2 * i + 1, size) for i in range(ranks - power))
    left = [flow.target for flow in pairs] + list(range(2 * len(pairs), ranks))
    if pairs:
        yield pairs
    distance = 1
    while distance < power:
        yield tuple(Flow(left[i], left[i ^ distance], size) for i in range(power))
        distance *= 2
    if pairs:
        yield _reversed(pairs)


def repeated(rounds: Rounds) -> Iterator[tuple[tuple[Flow, ...], int]]:
    """Each round, and how often it comes in a row: a ring of 512 ranks has 1022 rounds of 512 flows."""
    for _, alike in itertools.groupby(rounds, key=id):
        flows = list(alike)
        yield flows[0], len(flows)


def _add(one: InterfaceBytes, other: InterfaceBytes, times: int = 1) -> InterfaceBytes:
    return InterfaceBytes(one.sent + times * other.sent, one.received + times * other.received)
