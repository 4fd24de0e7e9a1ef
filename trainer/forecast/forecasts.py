"""What a run would take on a cluster, by each strategy: for tables, as JSON, and for a trace viewer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.errors import InputError
from trainer.planning.exchange import ExchangePart
from trainer.planning.placement.tasks import Compute, Receive, UpdateOwned
from trainer.planning.simulation.collectives import Exchanged
from trainer.planning.simulation.engine import Played, Span
from trainer.planning.simulation.epoch import Interrupted
from trainer.planning.simulation.stepping import StepSeconds, Work, seconds_of
from trainer.telemetry.trace import MESSAGES, STEP, TRANSFERS, Event, text

# Of each rank that is drawn.
Events = Mapping[int, Sequence[Event]]


@dataclass(frozen=True)
class Forecast:
    """What a strategy takes on `ranks` ranks.

    Attributes:
        label: name of the strategy, and what else tells it from another row.
        way: how training is divided, for people.
        ranks: that train.
        hosts: that they take.
        samples: of an update, over all ranks.
        step: seconds of an update, reading left out.
        reading_s: in which its volumes are read, while the update before is computed.
        efficiency: samples per second over those of as many ranks that each train alone.
        sent_bytes: in an update, of the rank that sends most.
        all_sent_bytes: of all ranks together.
        memory_bytes: of the rank that needs most.
        fits: whether each rank's device has as much.
        limit: what the step waits for most, for people.
        epoch_s: of all training samples, with checkpoints and failures.
        joules: in an epoch.
        dollars: of an epoch; None where a device has no price.
        interrupted: what checkpoints and failures make of it.
    """

    label: str
    way: str
    ranks: int
    hosts: int
    samples: int
    step: StepSeconds
    reading_s: float
    efficiency: float
    sent_bytes: float
    all_sent_bytes: float
    memory_bytes: int
    fits: bool
    limit: str
    epoch_s: float
    joules: float
    dollars: float | None
    interrupted: Interrupted

    @property
    def step_s(self) -> float:
        """Seconds of an update: reading goes on meanwhile, and counts where it takes longer."""
        return max(self.step.step_s, self.reading_s)

    @property
    def samples_per_s(self) -> float:
        """Samples per second, of all ranks."""
        return self.samples / self.step_s


@dataclass(frozen=True)
class RefusedForecast:
    """Why a strategy cannot train on `ranks` ranks; `label` as in `Forecast`."""

    label: str
    ranks: int
    reason: str


@dataclass(frozen=True)
class Simulation:
    """What strategies would take.

    Attributes:
        network: name of it.
        sample_shape: of what it takes.
        precision: Keras' dtype policy.
        parameters: trainable numbers.
        cluster: name of it.
        seconds_from: where the seconds of operations come from, for people.
        rows: by ranks, then by strategy.
        traces: of each label and number of ranks, makes the events of some ranks' step.
    """

    network: str
    sample_shape: tuple[int, ...]
    precision: str
    parameters: int
    cluster: str
    seconds_from: str
    rows: tuple[Forecast | RefusedForecast, ...]
    traces: dict[tuple[str, int], Callable[[], Events]] = dataclasses.field(default_factory=dict, repr=False)


def tree(simulation: Simulation) -> dict[str, Any]:
    """Return a simulation for JSON."""
    fields: dict[str, Any] = {
        field.name: getattr(simulation, field.name)
        for field in dataclasses.fields(simulation)
        if field.name not in ("rows", "traces")
    }
    fields["sample_shape"] = list(simulation.sample_shape)
    fields["rows"] = [_row(one) for one in simulation.rows]
    return fields


def _row(row: Forecast | RefusedForecast) -> dict[str, Any]:
    if isinstance(row, RefusedForecast):
        return {"strategy": row.label, "ranks": row.ranks, "refused": row.reason}
    figures = {key: value for key, value in vars(row).items() if key not in ("label", "step", "interrupted")}
    return {
        "strategy": row.label,
        "refused": None,
        **figures,
        "step_s": row.step_s,
        "samples_per_s": row.samples_per_s,
        "busy_s": row.step.busy_s,
        "slowest_rank_s": row.step.slow_s,
        "waiting_s": row.step.waiting_s,
        **dataclasses.asdict(row.interrupted),
    }


def last_trace(simulation: Simulation) -> Events:
    """Return the events of the first strategy that is possible on the most ranks.

    Raises:
        InputError: none is.
    """
    if not simulation.traces:
        refused = next(one for one in reversed(simulation.rows) if isinstance(one, RefusedForecast))
        raise InputError(f"There is no step to be traced: {refused.label}: {refused.reason}")
    most = max(ranks for _, ranks in simulation.traces)
    return next(events for (_, ranks), events in simulation.traces.items() if ranks == most)()


# A simulated step for a trace viewer: what ranks compute, what moves meanwhile, and what they wait for.


def of_played(played: Played) -> Events:
    """Return the events of an update's task lists."""
    events: dict[int, list[Event]] = {rank: [] for rank in range(len(played.busy_s))}
    for span in played.spans:
        thread = MESSAGES if isinstance(span.task, Receive) else STEP
        events[span.rank].append((thread, _name(span), span.start, span.end - span.start, {}))
    for one in played.transfers:
        known = {"bytes": one.bytes, "queued_us": round(1e6 * (one.start - one.sent), 1)}
        events[one.source].append((TRANSFERS, f"to rank {one.target}", one.start, one.end - one.start, known))
    return events


def of_whole(work: Work, step: StepSeconds, exchanged: Exchanged, parts: Sequence[ExchangePart]) -> Events:
    """Return the events of a rank that trains the whole network; all do the same.

    The slowest rank's: it computes longest. Parts of the gradients follow each other.
    """
    factor = 1 + step.slow_s / work.seconds
    forward, backward = work.forward_s * factor, work.backward_s * factor
    events: list[Event] = [(STEP, "forward", 0.0, forward, {}), (STEP, "backward", forward, backward, {})]
    free = 0.0
    for number, (part, took) in enumerate(zip(parts, seconds_of(exchanged, parts), strict=True), start=1):
        if exchanged.seconds:
            start = max(free, forward + backward * part.ready)
            free = start + took
            events.append((TRANSFERS, f"part {number} of the gradients", start, took, {}))
    done = forward + backward + step.waiting_s
    if step.waiting_s:
        events.append((MESSAGES, "wait", forward + backward, step.waiting_s, {}))
    events.append((STEP, "update", done, work.update_s * factor, {}))
    return {0: events}


def trace(events: Events) -> str:
    """Return the content of a file for chrome://tracing or ui.perfetto.dev."""
    ranks = [f"rank {rank}, simulated" for rank in sorted(events)]
    return text(ranks, [(rank, 0, own) for rank, own in events.items()])


def _name(span: Span) -> str:
    if isinstance(span.task, Receive):
        first = span.task.messages[0]
        return f"wait for {first.content} of {first.name} from rank {first.source}"
    if isinstance(span.task, UpdateOwned):
        return "update"
    way = "" if isinstance(span.task, Compute) else f", {type(span.task).__name__.lower()}"
    return f"{span.task.unit.operation}{way}"
