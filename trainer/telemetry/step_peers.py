"""Peers beside ours in `cingulum bench step`: two ranks against two copies of the same framework, in turn."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.errors import CingulumError
from trainer.scaling.peers import starting
from trainer.scaling.peers.job import PeerJob
from trainer.telemetry.step_worker import StepJob

NAMES = ("ddp", "multiworker")
TITLES = {"ddp": "PyTorch DDP (gloo)", "multiworker": "tf.distribute MultiWorkerMirrored"}


class PeerTimes:
    """Seconds per step of one peer, repeat by repeat.

    Attributes:
        name: of the peer.
        title: what it is called.
        skipped: why it was not measured, or not to the end; None where it was.
        ranks_s: of two ranks.
        copies_s: of two independent copies at once.
    """

    def __init__(self, name: str, job: StepJob, environment: Path | None) -> None:
        self.name = name
        self.title = TITLES[name]
        self.skipped = starting.missing(name, environment)
        if job.sync_batch_norm and self.skipped is None:
            self.skipped = "has no synchronous batch norm for this network"
        self.ranks_s: list[float] = []
        self.copies_s: list[float] = []
        self._job = job
        self._environment = environment

    def measure(self) -> None:
        """Time two ranks and two copies once more, unless the peer is skipped."""
        try:
            if self.skipped is None:
                self.ranks_s.append(self._seconds([2]))
                self.copies_s.append(self._seconds([1, 1]))
        except CingulumError as error:
            self.skipped = f"failed: {error}"

    def _seconds(self, launches: Sequence[int]) -> float:
        """Mean over processes of their median seconds per step, of launches with so many ranks at once."""
        asked = self._job
        jobs = [
            PeerJob(
                self.name,
                model=asked.model,
                size=asked.size,
                width=asked.width,
                batch=asked.batch,
                warm_up=asked.steps,  # as ours: one block
                steps=asked.steps * asked.blocks,
                ranks=ranks,
            )
            for ranks in launches
        ]
        found = starting.run(jobs, environment=self._environment)
        return statistics.mean(statistics.median(rank["seconds"]) for launch in found for rank in launch)


def figures(ours_s: Sequence[float], measured: Sequence[PeerTimes]) -> dict[str, Any]:
    """What the comparison says.

    Args:
        ours_s: seconds per step of our two ranks, repeat by repeat.
        measured: the peers, in the same repeats.

    Returns:
        `peers`: by name, `two_ranks_step_s`, `two_copies_step_s`, `efficiency` as ours, and `lead`: its step
        time over ours, so that above 1 we are ahead, each of the last two a median over repeats with `_min`
        and `_max`; or `skipped`, why not. `best_peer` is the one with the smallest lead, `best_peer_lead`
        that lead; both None without any.
    """
    rows: dict[str, dict[str, Any]] = {}
    for peer in measured:
        if peer.skipped is not None:
            rows[peer.name] = {"skipped": peer.skipped}
            continue
        pairs = zip(peer.copies_s, peer.ranks_s, strict=True)
        leads = [theirs / ours for theirs, ours in zip(peer.ranks_s, ours_s, strict=True)]
        rows[peer.name] = {
            "two_ranks_step_s": statistics.median(peer.ranks_s),
            "two_copies_step_s": statistics.median(peer.copies_s),
            **spread("efficiency", [copies / ranks for copies, ranks in pairs]),
            **spread("lead", leads),
        }
    leads_by_name = {name: row["lead"] for name, row in rows.items() if "lead" in row}
    best = min(leads_by_name, key=lambda name: leads_by_name[name], default=None)
    return {"peers": rows, "best_peer": best, "best_peer_lead": leads_by_name.get(best or "")}


def told(name: str, row: dict[str, Any]) -> str:
    """A line for people, from what `figures` says of a peer."""
    if "skipped" in row:
        return f"{TITLES[name]}: {row['skipped']}"
    lead, efficiency = (
        f"{row[what]:.2%} (from {row[f'{what}_min']:.2%} to {row[f'{what}_max']:.2%})"
        for what in ("lead", "efficiency")
    )
    return f"{TITLES[name]}: step time over ours {lead}, efficiency {efficiency}"


def spread(name: str, values: Sequence[float]) -> dict[str, float]:
    """The median, and `_min` and `_max`."""
    return {name: statistics.median(values), f"{name}_min": min(values), f"{name}_max": max(values)}
