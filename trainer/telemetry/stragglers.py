"""The warning that one rank slows down the others."""

from __future__ import annotations

from collections.abc import Mapping

from trainer.telemetry.records import Slowest

# Least ratio to the others' own time, and least seconds that it adds to an epoch, for a warning.
LEAST_RATIO = 1.25
LEAST_COST_S = 1.0

WORDS = {
    "input_wait": "waiting for its input",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "exposed": "waiting for gradients",
    "update": "the update",
    "other": "what is outside the compiled step",
}


def warning(slowest: Slowest, means: Mapping[str, float], host: str, steps: int) -> str | None:
    """Return a warning about the slowest rank; None where there is no significant straggler.

    Args:
        slowest: of an epoch.
        means: seconds per step of that rank.
        host: that it is on.
        steps: of the epoch.
    """
    own = means["seconds"] - means["exposed"]
    cost = own * (1 - 1 / slowest.ratio) * steps
    if slowest.ratio < LEAST_RATIO or cost < LEAST_COST_S:
        return None
    return (
        f"rank {slowest.rank} on {host} slows down the others: its own work takes {own:.3f} s a step, "
        f"{slowest.ratio:.2f} times as long as theirs, most of the difference in {WORDS[slowest.part]}. "
        f"That made the epoch about {cost:.1f} s longer."
    )
