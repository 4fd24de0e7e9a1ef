"""Peers beside ours in `cingulum bench step`: two ranks against two copies of the same framework, in turn."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.peers import starting
from benchmarks.peers.job import PeerJob
from cingulum.bench.processes import Contestant, Process
from trainer.bench.spreads import ratios, spread
from trainer.bench.step_worker import StepJob
from trainer.errors import CingulumError

NAMES = ("ddp", "multiworker")


class Peers(contextlib.ExitStack):
    """All of them, as `cingulum.bench.step.Others` asks for it."""

    def __init__(self, job: StepJob) -> None:
        super().__init__()
        self._timed = [PeerTimes(name, job, None) for name in NAMES]

    @property
    def ways(self) -> list[Callable[[], None]]:
        """Two ranks of each, and two copies of each."""
        return [way for one in self._timed for way in (one.measure_ranks, one.measure_copies)]

    def start(self, tell: Callable[[str], None]) -> None:
        """Start all of them."""
        for one in self._timed:
            tell(f"starting {one.title}")
            self.enter_context(one)
            one.start()

    def figures(self, ours_s: Sequence[float]) -> dict[str, Any]:
        """Return what `figures` says."""
        return figures(ours_s, self._timed)

    def told(self, found: Mapping[str, Any]) -> list[str]:
        """Return a line for each."""
        return [told(name, row) for name, row in found["peers"].items()]


class PeerTimes:
    """Seconds per step of one peer, repeat by repeat; its processes end with the context.

    Attributes:
        name: of the peer.
        title: what it is called.
        skipped: why it was not measured, or not to the end; None where it was.
        ranks_s: of two ranks.
        copies_s: of two independent copies at once.
    """

    def __init__(self, name: str, job: StepJob, environment: Path | None) -> None:
        self.name = name
        self.title = starting.TITLES[name]
        self.skipped = starting.missing(name, environment)
        if job.sync_batch_norm and self.skipped is None:
            self.skipped = "has no synchronous batch norm for this network"
        self.ranks_s: list[float] = []
        self.copies_s: list[float] = []
        self._job = job
        self._environment = environment
        self._running = contextlib.ExitStack()
        self._ranks: Contestant | None = None
        self._copies: Contestant | None = None

    def __enter__(self) -> PeerTimes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.__exit__(kind, error, trace)

    def start(self) -> None:
        """Start two ranks and two copies, and let them warm up, unless the peer is skipped."""
        with self._or_skipped():
            if self.skipped is None:
                self._ranks = self._started([2])
                self._copies = self._started([1, 1])

    def measure_ranks(self) -> None:
        """Time two ranks once more, unless the peer is skipped."""
        self._measure(self._ranks, self.ranks_s)

    def measure_copies(self) -> None:
        """Time two copies once more, unless the peer is skipped."""
        self._measure(self._copies, self.copies_s)

    def _measure(self, contestant: Contestant | None, seconds: list[float]) -> None:
        if contestant is not None and self.skipped is None:
            with self._or_skipped():
                seconds.append(statistics.mean(s for rank in contestant.block() for s in rank["seconds"][1:]))

    @contextlib.contextmanager
    def _or_skipped(self) -> Iterator[None]:
        """Where the peer fails, it is left out from then on, and the others are measured to the end."""
        try:
            yield
        except CingulumError as error:
            self.skipped = f"failed: {error}"
            self._running.close()

    def _started(self, launches: Sequence[int]) -> Contestant:
        asked = self._job
        processes: list[Process] = []
        for ranks in launches:
            job = PeerJob(
                self.name,
                model=asked.model,
                size=asked.size,
                width=asked.width,
                batch=asked.batch,
                warm_up=asked.steps + 1,  # as ours: one block, of which the first step is not counted
                steps=asked.steps + 1,
                ranks=ranks,
            )
            processes += starting.processes_of(job, environment=self._environment)
        contestant = self._running.enter_context(Contestant(self.title, processes))
        contestant.warm_up()
        return contestant


def figures(ours_s: Sequence[float], measured: Sequence[PeerTimes]) -> dict[str, Any]:
    """Return the comparison of the peers with ours.

    Args:
        ours_s: seconds per step of our two ranks, repeat by repeat.
        measured: the peers, in the same repeats.

    Returns:
        `peers`: by name, `two_ranks_step_s`, `two_copies_step_s`, `efficiency` as ours, and `lead`: its step
        time over ours, so that above 1 we are ahead, each of the last two as `spread` tells it; or
        `skipped`, why not. `best_peer` is the one with the smallest lead, `best_peer_lead`
        that lead; both None without any.
    """
    rows: dict[str, dict[str, Any]] = {}
    for peer in measured:
        if peer.skipped is not None:
            rows[peer.name] = {"skipped": peer.skipped}
            continue
        rows[peer.name] = {
            "two_ranks_step_s": statistics.median(peer.ranks_s),
            "two_copies_step_s": statistics.median(peer.copies_s),
            **spread("efficiency", ratios(peer.copies_s, peer.ranks_s)),
            **spread("lead", ratios(peer.ranks_s, ours_s)),
        }
    leads_by_name = {name: row["lead"] for name, row in rows.items() if "lead" in row}
    best = min(leads_by_name, key=lambda name: leads_by_name[name], default=None)
    return {"peers": rows, "best_peer": best, "best_peer_lead": leads_by_name.get(best or "")}


def told(name: str, row: dict[str, Any]) -> str:
    """Return a line of text, from what `figures` returns for a peer."""
    if "skipped" in row:
        return f"{starting.TITLES[name]}: {row['skipped']}"
    lead, efficiency = (
        f"{row[what]:.2%} (95 %: {row[f'{what}_low']:.2%} to {row[f'{what}_high']:.2%})"
        for what in ("lead", "efficiency")
    )
    return f"{starting.TITLES[name]}: step time over ours {lead}, efficiency {efficiency}"
