"""Compute the figures of the loader benchmark from its measurements: pure functions."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from trainer.bench.loader.readers import KINDS, LIMIT, OURS, OURS_MEMORY, OURS_PAST


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return median, smallest and largest."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def limit_speed(volumes: int, seconds: Mapping[str, float]) -> float:
    """Return the volumes per second of the slowest part, each measured alone."""
    return volumes / max(seconds.values())


def ratios(speeds: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Ours against the limit and against the fastest peer, at one size and one state of the page cache.

    Ours is the loader as it reads a set that is larger than the memory, past the page cache, where that was
    measured. Peers that read files are compared with it, those that keep the volumes in memory with ours that
    does so too, `data.cache: memory`, or with the one that reads where that was not measured.

    Args:
        speeds: volumes per second of each reader in each repeat, ours and the limit among them. All of them
            store volumes in as many bits per voxel.

    Returns:
        `limit_ratio` with `_min` and `_max`, the median over repeats of the ratio within a repeat;
        `first_epoch_limit_ratio` alike, of ours through the page cache, as it reads a smaller set that is not
        in it yet;
        `best_peers`, for `files` and for `memory` the `peer` that is fastest by its median, which of `ours`
        it is compared with, and the `ratio`; `best_peer_ratio` and `best_peer`, the smaller ratio of the two,
        None where there is no peer.
    """
    reading = OURS_PAST if OURS_PAST in speeds else OURS
    limit_ratios: dict[str, Any] = named("limit_ratio", _pairwise(speeds[reading], speeds[LIMIT]))
    if reading != OURS:
        limit_ratios |= named("first_epoch_limit_ratio", _pairwise(speeds[OURS], speeds[LIMIT]))
    best: dict[str, dict[str, Any]] = {}
    for place, in_memory in (("files", False), ("memory", True)):
        peers = [name for name in speeds if KINDS[name].is_peer and KINDS[name].memory == in_memory]
        if peers:
            peer = max(peers, key=lambda name: statistics.median(speeds[name]))
            ours = OURS_MEMORY if in_memory and OURS_MEMORY in speeds else reading
            ratio = named("ratio", _pairwise(speeds[ours], speeds[peer]))
            best[place] = {"peer": peer, "ours": ours, **ratio}
    least = min(best.values(), key=lambda one: one["ratio"], default=None)
    return {
        **limit_ratios,
        "best_peer_ratio": least["ratio"] if least else None,
        "best_peer": least["peer"] if least else None,
        "best_peers": best,
    }


def worst(cases: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any] | None:
    """Return the case in which a ratio is smallest, of those that have it; None where none has."""
    having = [case for case in cases if case[name] is not None]
    return dict(min(having, key=lambda case: case[name])) if having else None


def _pairwise(ours: Sequence[float], others: Sequence[float]) -> list[float]:
    return [mine / theirs for mine, theirs in zip(ours, others, strict=True)]


def named(name: str, values: Sequence[float]) -> dict[str, float]:
    """Return median, smallest and largest as `name`, `name_min` and `name_max`."""
    found = spread(values)
    return {name: found["median"], f"{name}_min": found["min"], f"{name}_max": found["max"]}
