"""Tell people when one rank holds up the others."""

from __future__ import annotations

from collections.abc import Mapping

from trainer.telemetry.records import Slowest

# Below either, a rank is not worth speaking of: so many times the others' own time, and so many seconds that
# its epoch took longer for it.
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
    """What to say of the slowest rank; None where it holds up nobody by much.

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
        f"rank {slowest.rank} on {host} holds up the others: for itself it needs {own:.3f} s a step, "
        f"{slowest.ratio:.2f} times as long as they do, most of it in {WORDS[slowest.part]}. "
        f"The epoch took about {cost:.1f} s longer for it."
    )
