"""What a run predicts of its own steps, and what it then measures: prediction.json, and both side by side.

Pure but for `RunPrediction.read`. docs/explanation/where-time-goes.md has the rules.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from trainer.errors import RunError
from trainer.planning import links
from trainer.planning.exchange import Exchange, exposed
from trainer.planning.links import HostLink, Timed
from trainer.run_folder import record
from trainer.telemetry.losses import LAST
from trainer.telemetry.records import RunTelemetry, Step

NAME = "prediction.json"
# Of the file's form.
VERSION = 1
# Computing is what these many steps needed after the first, in which the network is traced.
CALIBRATION_STEPS = 5
# Endings of keys, in the order of `Exposed`.
_BOUNDS = ("_s", "_at_least_s", "_at_most_s")


class RunPrediction(BaseModel):
    """Content of prediction.json; docs/reference/run-folder.md says what each key is.

    Seconds are None where they cannot be predicted: without links that were timed, or (`compute_s` and the
    steps) until the first steps are done.
    """

    model_config = ConfigDict(frozen=True)

    version: int = VERSION
    start: int
    began: int
    step: int
    hosts: list[str]
    sent: list[int]
    received: list[int]
    messages: list[int] = []
    memory: list[int] = []
    counted: int
    crossing: dict[str, list[int]] = {}
    timed: list[Timed] = []
    link: HostLink | None = None
    parts: int
    statistics: int = 0
    communication_s: float | None = None
    statistics_s: float | None = None
    servers_s: float = 0.0
    compute_s: float | None = None
    backward_s: float | None = None
    exposed_s: float | None = None
    exposed_at_least_s: float | None = None
    exposed_at_most_s: float | None = None
    step_s: float | None = None
    step_at_least_s: float | None = None
    step_at_most_s: float | None = None

    @classmethod
    def read(cls, folder: Path) -> RunPrediction | None:
        """Return the prediction in a run folder; None where there is none.

        Raises:
            RunError: it is damaged, or of a later version.
        """
        path = folder / NAME
        if not path.is_file():
            return None
        stored = record.read_json(path)
        version = stored.get("version") if isinstance(stored, dict) else None
        if isinstance(version, int) and version > VERSION:
            raise RunError(
                f"{path}: is of version {version}; this cingulum reads versions up to {VERSION}.",
                cure="Use the cingulum that made this run, or a later one.",
            )
        try:
            return cls.model_validate(stored)
        except ValidationError as error:
            keys = ", ".join(sorted({str(one["loc"][0]) for one in error.errors() if one["loc"]}))
            raise RunError(f"{path}: is damaged ({keys or 'no JSON object'}).") from None


def before_steps(
    exchange: Exchange,
    hosts: Sequence[str],
    timed: Sequence[Timed],
    *,
    ranks: int,
    start: int,
    step: int,
    statistics: int = 0,
    round_trip_s: float | None = None,
    memory: Sequence[int] = (),
) -> RunPrediction:
    """Return what can be said before the first step: bytes, and where links were timed communication.

    Args:
        exchange: what one update moves.
        hosts: of each process, ranks first.
        timed: all-reduces between the ranks; empty where there were none.
        ranks: how many of the processes train.
        start: number of this start.
        step: updates done before.
        statistics: all-reduces of synchronous batch norm in a step, each of which is waited for.
        round_trip_s: of the smallest message to the servers and back, where there are servers; half of it is
            then the latency of a round, which Horovod has no part in.
        memory: bytes that each rank needs for its part of the network; empty where this is not predicted.
    """
    places = links.places(hosts)
    several = len(set(hosts)) > 1
    crossing = links.crossing(exchange.rounds, places) if several and exchange.of_all else []
    link: HostLink | None = None
    communication: float | None = None
    # All-reduces within one host say nothing of the link to servers on another.
    if timed and exchange.allreduce is not None and several == (len(set(hosts[:ranks])) > 1):
        link = links.fit(timed, exchange.allreduce, hosts[:ranks])
        if round_trip_s is not None:
            link = HostLink(round_trip_s / 2, link.bytes_per_second)
        communication = links.seconds(exchange.rounds, hosts, link)
    return RunPrediction(
        start=start,
        began=step,
        step=step,
        hosts=list(hosts),
        sent=[round(one.sent) for one in exchange.payload],
        received=[round(one.received) for one in exchange.payload],
        messages=list(exchange.messages),
        memory=list(memory),
        counted=exchange.counted,
        crossing={
            host: [round(one.sent), round(one.received)]
            for host, one in zip(dict.fromkeys(hosts), crossing, strict=False)
        },
        timed=list(timed),
        link=link,
        parts=exchange.parts,
        statistics=statistics,
        communication_s=communication,
        statistics_s=statistics * timed[0].seconds if timed else None,
    )


def computing(steps: Sequence[Step]) -> tuple[float, float] | None:
    """Return median seconds of computing and of the backward pass of a rank's first steps; None without any.

    Computing is all but waiting for others' gradients: input, forward, backward, update and the rest.
    """
    counted = [step for step in steps if not step.first]
    if not counted:
        return None
    return statistics.median(s.own for s in counted), statistics.median(s.backward for s in counted)


def after_steps(
    prediction: RunPrediction, ranks: Sequence[tuple[float, float]], step: int, servers_s: float
) -> RunPrediction:
    """Return the prediction with computing seconds, which the first steps told, and the step that follows.

    A step is what the slowest rank computes, and what it then still waits: see `exposed`. Servers' updates
    are on the way of the weights and count as communication.

    Args:
        prediction: of `before_steps`.
        ranks: `computing` of each.
        step: the last of those steps; later ones are compared with the prediction.
        servers_s: seconds that the busiest server takes to update.
    """
    if prediction.communication_s is None or prediction.statistics_s is None:
        return prediction
    compute, backward = max(ranks)
    communication = prediction.communication_s + servers_s
    waits = [one + prediction.statistics_s for one in exposed(communication, backward, prediction.parts)]
    return prediction.model_copy(
        update={
            "step": step,
            "servers_s": servers_s,
            "compute_s": compute,
            "backward_s": backward,
            "communication_s": communication,
            **{f"exposed{bound}": wait for bound, wait in zip(_BOUNDS, waits, strict=True)},
            **{f"step{bound}": compute + wait for bound, wait in zip(_BOUNDS, waits, strict=True)},
        }
    )


def compare(
    prediction: RunPrediction, telemetry: RunTelemetry, memory: Sequence[int | None] = ()
) -> dict[str, dict[str, float]]:
    """Return predicted, measured and their ratio of each figure that has both; empty where none has.

    `counted_bytes`: payload per step in the telemetry of the rank that has most. `crossing_bytes`: what the
    busiest host sends per step, by its interfaces' counters, headers and other programs' bytes included.
    `communication_s`: while gradients were under way, on the rank that was last. `exposed_s`: what it waited
    after its backward pass. `step_s`. Seconds are medians over the steps after `prediction.step`.
    `memory_bytes`: of the rank that needs most.

    Args:
        prediction: of the run.
        telemetry: of the run.
        memory: bytes that each rank took at most.
    """
    by_rank = [
        [s for s in own[-LAST:] if s.step > prediction.step and not s.first]
        for own in telemetry.steps.values()
    ]
    sizes = [statistics.fmean(sum(t.bytes for t in s.transfers) for s in own) for own in by_rank if own]
    pairs: dict[str, tuple[float | None, float | None]] = {
        "counted_bytes": (prediction.counted, max(sizes, default=None)),
        "crossing_bytes": _busiest_host(prediction, telemetry),
    }
    if prediction.memory and len(memory) == len(prediction.memory):
        pairs["memory_bytes"] = max(zip(prediction.memory, memory, strict=True), key=lambda pair: pair[0])
    by_step = _common(by_rank)
    if by_step and prediction.step_s is not None:
        measured = {
            "communication_s": [min(sum(t.seconds for t in s.transfers) for s in own) for own in by_step],
            "exposed_s": [min(s.exposed for s in own) for own in by_step],
            "step_s": [statistics.fmean(s.seconds for s in own) for own in by_step],
        }
        for name, values in measured.items():
            pairs[name] = (getattr(prediction, name), statistics.median(values))
    return {
        name: {"predicted": predicted, "measured": found, "ratio": round(predicted / found, 4)}
        for name, (predicted, found) in pairs.items()
        if predicted and found
    }


def _common(by_rank: Sequence[Sequence[Step]]) -> list[list[Step]]:
    """The steps that all ranks recorded, each with the ranks' records of it."""
    numbered = [{s.step: s for s in own} for own in by_rank]
    common = set.intersection(*map(set, numbered)) if numbered else set()
    return [[own[number] for own in numbered] for number in sorted(common)]


def _busiest_host(prediction: RunPrediction, telemetry: RunTelemetry) -> tuple[float | None, float | None]:
    """Return bytes per step that the busiest host with counters sends: predicted, counted in this start."""
    pairs = []
    for host, epochs in telemetry.hosts.items():
        own = [epoch for epoch in epochs if epoch.step > prediction.began]
        if own and host in prediction.crossing:
            sent = sum(way["sent"] for e in own for name, way in e.interfaces.items() if name != "lo")
            pairs.append((prediction.crossing[host][0], sent / (own[-1].step - prediction.began)))
    return max(pairs, default=(None, None))
