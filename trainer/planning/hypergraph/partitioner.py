"""Mt-KaHyPar behind one class: a hypergraph in parts of given weights, with the least connectivity.

Gottesbüren, Heuer, Maas, Sanders, Schlag: Scalable High-Quality Hypergraph Partitioning
(doi 10.1145/3626527). It does not check its input; this does. It computes in a process of its own
(`partitioner_process`), which may die and is not waited for without end.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import math
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import IO, Any, cast

import numpy as np

from trainer.errors import InputError
from trainer.planning.hypergraph.nets import Hypergraph

# Weights and costs are whole numbers of 32 bits there, also all together; the heaviest tile has so many.
_HEAVIEST = 10**6
_ALL = 2**30
# Farther is as far: costs times distances must stay small, too.
_FARTHEST = 100
# Of one partition; those of the largest networks take seconds.
LIMIT_S = 120.0


class PartitionError(Exception):
    """Mt-KaHyPar gave no partition: it died, refused, or took too long. The message says which."""


class Partitioner:
    """Divides hypergraphs, within a `with` statement, in a process that is started for the first of them.

    Args:
        limit_s: seconds that a partition may take; after one that takes longer, none is tried any more.
        program: a command that answers as `partitioner_process` does.
    """

    def __init__(self, limit_s: float = LIMIT_S, program: Sequence[str] = ()) -> None:
        self._limit_s = limit_s
        self._program = program or (sys.executable, "-m", "trainer.planning.hypergraph.partitioner_process")
        self._process: subprocess.Popen[str] | None = None
        self._too_slow = False

    def __enter__(self) -> Partitioner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._end(self._process)

    def partition(
        self,
        graph: Hypergraph,
        shares: Sequence[float],
        *,
        imbalance: float,
        seed: int,
        distances: Sequence[Sequence[float]] | None = None,
    ) -> tuple[int, ...]:
        """Return the part of each vertex; the same input gives the same parts.

        With distances, each net costs its bytes times the least tree that joins the parts that it is spread
        over.

        Args:
            graph: to be divided.
            shares: how much of all weights each part is to have, positive; two or more.
            imbalance: by how much a part may exceed its share, at least 0.
            seed: of the random choices.
            distances: from each part to each other one, positive; None: all alike.

        Raises:
            ValueError: shares, distances or imbalance are not as said, there are fewer vertices than parts,
                or the hypergraph is not one.
            InputError: Mt-KaHyPar is not installed.
            PartitionError: it gave none.
        """
        _check(graph, shares, imbalance)
        _check_distances(distances, len(shares))
        request = _asked(graph, shares, imbalance, distances)
        return tuple(self._ask({**request, "seed": seed})[: len(graph.weights)])

    def _ask(self, request: dict[str, Any]) -> list[int]:
        if self._too_slow:
            raise PartitionError("not tried: an earlier one took too long")
        process = self._process or self._start()
        late = threading.Event()

        def end_it() -> None:
            late.set()
            process.kill()

        watchdog = threading.Timer(self._limit_s, end_it)
        watchdog.start()
        try:
            asks, answers = _pipes(process)
            asks.write(json.dumps(request) + "\n")
            asks.flush()
            answer = answers.readline()
        except BrokenPipeError:
            answer = ""
        finally:
            watchdog.cancel()
        if not answer.endswith("\n"):
            self._end(process)
            if late.is_set():
                self._too_slow = True
                raise PartitionError(f"it took longer than {self._limit_s:g} s")
            raise PartitionError(f"it ended with {_how(process.returncode)}")
        found: dict[str, Any] = json.loads(answer)
        if "parts" not in found:
            raise PartitionError(f"it refused: {found['refused']}")
        parts: list[int] = found["parts"]
        return parts

    def _start(self) -> subprocess.Popen[str]:
        if importlib.util.find_spec("mtkahypar") is None:
            raise InputError(
                "Mt-KaHyPar is not installed.", cure="Install it: pip install 'mtkahypar==1.7.*'"
            )
        self._process = subprocess.Popen(
            self._program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        return self._process

    def _end(self, process: subprocess.Popen[str]) -> None:
        self._process = None
        for pipe in _pipes(process):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    return cast("IO[str]", process.stdin), cast("IO[str]", process.stdout)


def _how(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"code {code}"


def _asked(
    graph: Hypergraph,
    shares: Sequence[float],
    imbalance: float,
    distances: Sequence[Sequence[float]] | None,
) -> dict[str, Any]:
    """Return what `partitioner_process` takes, but the seed."""
    parts, vertices = len(shares), len(graph.weights)
    part_of_all = [share / math.fsum(shares) for share in shares]
    is_mapped, is_unequal = distances is not None, len(set(shares)) > 1
    heaviest, all_weights = float(graph.weights.max()), float(graph.weights.sum())
    if is_mapped and is_unequal:  # with ballast
        all_weights *= (1 + imbalance) * parts * max(part_of_all)
    scale = min(_HEAVIEST / heaviest, _ALL / all_weights) if heaviest > 0 else 1.0
    weights = _whole(graph.weights, scale)
    most = _ALL // _FARTHEST if is_mapped else _ALL
    costs = _whole(graph.costs, min(1.0, most / max(1, int(graph.costs.sum()))), least=1)
    request: dict[str, Any] = {
        "parts": parts,
        "imbalance": imbalance,
        "nets": graph.nets,
        "weights": weights,
        "costs": costs,
        "limits": None,
        "fixed": None,
        "target": None if distances is None else _target(distances),
    }
    limits = [math.ceil((1 + imbalance) * sum(weights) * part) for part in part_of_all]
    if is_unequal and is_mapped:
        # Limits that differ make the library draw from nothing, and recurse without end, where a part that
        # it begins with fits no rank (decision 56). So limits are alike, and ballast that no net holds takes
        # up what a slower rank may not have.
        ballast = [max(limits) - limit for limit in limits]
        request["weights"] = weights + ballast
        request["fixed"] = [-1] * vertices + list(range(parts))
        each = -(-sum(request["weights"]) // parts)
        request["imbalance"] = max(0.0, max(limits) / max(1, each) - 1)
    elif is_unequal:
        request["limits"] = limits
    return request


def _target(distances: Sequence[Sequence[float]]) -> list[tuple[int, int, int]]:
    """All parts, each joined with each other one; the least distance is 1."""
    edges = list(itertools.combinations(range(len(distances)), 2))
    # A graph has no directions.
    lengths = [max(distances[a][b], distances[b][a]) for a, b in edges]
    return [
        (a, b, min(_FARTHEST, max(1, round(length / min(lengths)))))
        for (a, b), length in zip(edges, lengths, strict=True)
    ]


def _check_distances(distances: Sequence[Sequence[float]] | None, parts: int) -> None:
    if distances is None:
        return
    if len(distances) != parts or any(len(row) != parts for row in distances):
        raise ValueError(f"distances must be a row for each of {parts} parts, each of as many numbers")
    pairs = itertools.permutations(range(parts), 2)
    if not all(distances[a][b] > 0 and math.isfinite(distances[a][b]) for a, b in pairs):
        raise ValueError("distances must be positive and finite")


def _check(graph: Hypergraph, shares: Sequence[float], imbalance: float) -> None:
    vertices = len(graph.weights)
    if len(shares) < 2 or not all(share > 0 and math.isfinite(share) for share in shares):
        raise ValueError(f"shares must be two or more positive numbers, not {list(shares)}")
    if not (imbalance >= 0 and math.isfinite(imbalance)):
        raise ValueError(f"imbalance must be 0 or more, not {imbalance}")
    if vertices < len(shares):
        raise ValueError(f"{vertices} tile(s) cannot be divided into {len(shares)} parts")
    if len(graph.nets) != len(graph.costs):
        raise ValueError(f"{len(graph.nets)} nets have {len(graph.costs)} costs")
    for net in graph.nets:
        if not net or min(net) < 0 or max(net) >= vertices or len(set(net)) != len(net):
            raise ValueError(f"net {net[:10]} is empty, names a tile twice or one that there is not")
    if not (np.isfinite(graph.weights).all() and (graph.weights >= 0).all() and (graph.costs > 0).all()):
        raise ValueError("weights of tiles must be finite and not negative, and costs of nets positive")


def _whole(values: Any, scale: float, *, least: int = 0) -> list[int]:
    return [max(least, round(float(one) * scale)) for one in values]
