"""What a run would take on a cluster, by each strategy: for tables, as JSON, and for a trace viewer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.errors import InputError
from trainer.planning.simulation.epoch import Interrupted
from trainer.planning.simulation.stepping import StepSeconds
from trainer.telemetry.trace import Event

# Of each rank that is drawn.
Events = Mapping[int, Sequence[Event]]


@dataclass(frozen=True)
class Forecast:
    """A strategy on so many ranks.

    Attributes:
        label: name of the strategy, and what else tells it from another row.
        way: how training is divided, for people.
        ranks: that train.
        hosts: that they take.
        samples: of an update, over all ranks.
        step: seconds of an update, reading left out.
        reading_s: in which its volumes are read, while the update before is computed.
        efficiency: samples per second over those of so many ranks that each train alone.
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
    """Why a strategy cannot train on so many ranks; `label` as in `Forecast`."""

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
    found: dict[str, Any] = {
        field.name: getattr(simulation, field.name)
        for field in dataclasses.fields(simulation)
        if field.name not in ("rows", "traces")
    }
    found["sample_shape"] = list(simulation.sample_shape)
    found["rows"] = [_row(one) for one in simulation.rows]
    return found


def _row(one: Forecast | RefusedForecast) -> dict[str, Any]:
    if isinstance(one, RefusedForecast):
        return {"strategy": one.label, "ranks": one.ranks, "refused": one.reason}
    known = {key: value for key, value in vars(one).items() if key not in ("label", "step", "interrupted")}
    return {
        "strategy": one.label,
        "refused": None,
        **known,
        "step_s": one.step_s,
        "samples_per_s": one.samples_per_s,
        "busy_s": one.step.busy_s,
        "slowest_rank_s": one.step.slow_s,
        "waiting_s": one.step.waiting_s,
        **dataclasses.asdict(one.interrupted),
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
