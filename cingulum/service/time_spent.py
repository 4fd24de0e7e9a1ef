"""Where the time of a run goes: the verdict of `cingulum diagnose`, its ranks and its hosts.

Of each rank the newest steps are read, so that a run of any length and size takes a bounded time.
"""

from __future__ import annotations

from typing import Any

from cingulum.service.failures import NotHere
from cingulum.service.run_facts import is_inside
from cingulum.service.schema import HostLoad, Proposal, RankTime, TimeSpentView
from trainer.run_folder.record import RunFolder
from trainer.telemetry import evidence, records
from trainer.telemetry.records import PARTS, HostEpoch, RunTelemetry

MOST_RANKS = 16
# Bytes of telemetry that are read of all files together, and of each at least and at most.
_MOST_BYTES, _FEWEST, _MOST = 1 << 24, 1 << 15, 1 << 20


def of(run: RunFolder) -> TimeSpentView:
    """Return where the time of a run goes.

    Raises:
        RunError: no steps were timed, or a file is damaged.
        NotHere: telemetry lies elsewhere.
    """
    files = sorted(run.telemetry.glob("*.jsonl"))
    if not all(is_inside(path, run.path) for path in files):
        raise NotHere("The telemetry is a link to a file outside of the run folder.")
    each = min(_MOST, max(_FEWEST, _MOST_BYTES // max(1, len(files))))
    telemetry = records.read(run.path, most_bytes=each)
    verdict = evidence.diagnose(run.path, telemetry)
    ranks = _ranks(telemetry)
    slowest = records.slowest({one.rank: {"seconds": _whole(one), **one.parts} for one in ranks})
    return TimeSpentView(
        step_s=verdict.step,
        bound=verdict.bound,
        summary=verdict.summary,
        evidence=list(verdict.evidence),
        gains=dict(verdict.gains),
        proposals=[Proposal(change=one.words, now=one.now_words, why=one.why) for one in verdict.settings],
        slowest_rank=slowest.rank if slowest is not None and len(ranks) > 1 else None,
        slowest_ratio=slowest.ratio if slowest is not None and len(ranks) > 1 else None,
        ranks=ranks[:MOST_RANKS],
        ranks_left_out=len(ranks[MOST_RANKS:]),
        hosts=[_host(epochs) for epochs in telemetry.hosts.values()],
    )


def _ranks(telemetry: RunTelemetry) -> list[RankTime]:
    """Return the time of each rank, those that need most for themselves first."""
    places = {rank: host for host, epochs in telemetry.hosts.items() for rank in epochs[-1].ranks}
    times = []
    for rank, steps in telemetry.steps.items():
        means = records.mean(steps)
        if means:
            own = means["seconds"] - means["exposed"]
            parts = {part: means[part] for part in PARTS}
            times.append(RankTime(rank=rank, host=places.get(rank, ""), own=own, parts=parts))
    return sorted(times, key=lambda one: -one.own)


def _whole(one: RankTime) -> float:
    return one.own + one.parts["exposed"]


def _host(epochs: tuple[HostEpoch, ...]) -> HostLoad:
    last = epochs[-1]
    # Of an epoch whose predecessor was not read, the number of steps is not known.
    begun = epochs[-2].step if len(epochs) > 1 else 0
    steps = max(1, last.step - begun)
    moved = {
        way: sum(one[way] for name, one in last.interfaces.items() if name != "lo") / steps
        for way in ("sent", "received")
    }
    return HostLoad(
        host=last.host,
        ranks=len(last.ranks),
        cpu_percent=last.cpu_percent,
        cores=last.cores,
        memory_bytes=last.rss_bytes,
        sent_per_step=moved["sent"],
        received_per_step=moved["received"],
        gpus=[_gpu(one) for one in last.gpus],
    )


def _gpu(told: Any) -> str:
    used = told.get("utilisation")
    busy = f" {100 * used:.0f} % busy" if isinstance(used, (int, float)) else ""
    return f"{told.get('name', 'GPU')}{busy}"
