"""A simulated step for a trace viewer: what ranks compute, what moves meanwhile, and what they wait for."""

from __future__ import annotations

from collections.abc import Sequence

from trainer.planning.exchange import ExchangePart
from trainer.planning.placement.tasks import Compute, Receive, UpdateOwned
from trainer.planning.simulation.collectives import Exchanged
from trainer.planning.simulation.engine import Played, Span
from trainer.planning.simulation.stepping import StepSeconds, Work, seconds_of
from trainer.profiling.forecasts import Events
from trainer.telemetry.trace import MESSAGES, STEP, TRANSFERS, Event, text


def of_played(played: Played) -> Events:
    """Return the events of an update's task lists."""
    found: dict[int, list[Event]] = {rank: [] for rank in range(len(played.busy_s))}
    for span in played.spans:
        thread = MESSAGES if isinstance(span.task, Receive) else STEP
        found[span.rank].append((thread, _name(span), span.start, span.end - span.start, {}))
    for one in played.transfers:
        known = {"bytes": one.bytes, "queued_us": round(1e6 * (one.start - one.sent), 1)}
        found[one.source].append((TRANSFERS, f"to rank {one.target}", one.start, one.end - one.start, known))
    return found


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
