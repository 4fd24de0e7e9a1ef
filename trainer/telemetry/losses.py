"""Step time saved if one bottleneck were removed.

A synchronous step ends when the last reduced gradient is back, and those leave when the last
rank has its own.
With `own` = input wait + computing (forward, backward, update, other) of each rank, a step therefore takes

    max over ranks of own  +  what the last rank still waits after its own backward pass,

and that last term is communication alone: the last rank waits for no other. Waiting of the quicker ranks is
no loss of its own, it only shows that they are quicker. Each loss is the difference that an improved number
makes in that sum: no input wait, the slow ranks as quick as the usual one, no communication.

Ranks that compute parts of one network also wait for each other within the passes. What the rank waits that
waits least is then for messages and for ranks that compute one after the other, and ranks are to be equally
quick: their shares can be chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trainer.telemetry.records import Step

# The newest steps tell how the run goes now; more of them would only take longer to read.
LAST = 2000
# A rank is slow that computes so much longer than the usual rank.
SLOW = 1.15
# So slow, and so late in a step, and it is slow at communicating, too.
GROSSLY_SLOW = 2.0
LATE = 0.05
# Seconds that a step needs to be handed a batch that is ready: waiting for so long is no fault of the input.
HAND_OVER = 0.002


@dataclass(frozen=True)
class Losses:
    """Seconds per step, means over the steps that were looked at.

    Attributes:
        steps: how many steps of each rank were looked at.
        step: what a step takes.
        input: sooner if every rank found its batches ready.
        communication: sooner if nothing had to be waited for once every rank has its gradients. Where ranks
            do not wait for each other, the mean over ranks of what each waits.
        hidden: communication that ran during backward passes and cost nothing.
        straggler: sooner if the slow ranks were as quick as the usual one; of a divided network, if all ranks
            computed equally long. Who is grossly slow at computing its samples is slow at communicating, too:
            its share of `communication` counts here as well.
        jitter: sooner if no step had a latest rank, beyond `straggler`: ranks that are late in turn.
        fixed: of the usual rank: being handed a batch, update, other; a larger batch lengthens none of them.
        computing: of the usual rank: forward, backward, update, other.
        slow: ranks that compute longer than `SLOW` times the usual rank, the slowest first.
        of_rank: mean seconds of computing of each rank.
        waits: mean seconds for which each rank waited for its input.
    """

    steps: int
    step: float
    input: float
    communication: float
    hidden: float
    straggler: float
    jitter: float
    fixed: float
    computing: float
    slow: tuple[int, ...]
    of_rank: Mapping[int, float]
    waits: Mapping[int, float]


def losses(
    steps: Mapping[int, Sequence[Step]], *, together: bool = True, divided: bool = False
) -> Losses | None:
    """Return the step time that each bottleneck costs.

    Args:
        steps: rank -> its steps, in order. Those in which the network was traced are passed over.
        together: whether ranks wait for each other in every step; no, under an asynchronous server.
        divided: whether they compute parts of one network.

    Returns:
        None where the ranks have no timed step in common.
    """
    if not together:
        return _apart(steps)
    parts = _aligned(steps)
    if parts is None:
        return None
    ranks, seconds, waited = sorted(steps), parts["seconds"], parts["input_wait"]
    computed = np.maximum(seconds - parts["exposed"] - waited, 0.0)
    latest = (waited + computed).max(axis=0)
    of_rank = computed.mean(axis=1)
    usual = float(np.sort(of_rank)[(len(ranks) - 1) // 2])
    is_slow = of_rank > SLOW * usual
    typical = computed[~is_slow].mean(axis=0)
    improved = np.where(is_slow[:, None], np.minimum(computed, typical), computed)
    late = _mean(latest - (waited + improved).max(axis=0))
    uneven = _mean(latest - (waited + computed).mean(axis=0))
    handed = np.minimum(waited, HAND_OVER)
    no_input = _mean(latest - (handed + computed).max(axis=0))
    several = len(ranks) > 1
    communication = float(parts["exposed"].min(axis=0).mean()) if several else 0.0
    ratio = of_rank.max() / usual if usual > 0 else 1.0
    grossly = ratio >= GROSSLY_SLOW and late >= LATE * seconds.mean()
    straggler = late + communication * (1 - 1 / ratio) if grossly else late
    if divided:
        straggler = late = float(of_rank.max() - of_rank.mean())
    return Losses(
        steps=seconds.shape[1],
        step=float(seconds.mean()),
        input=no_input,
        communication=communication,
        hidden=float(parts["overlapped"].mean()) if several else 0.0,
        straggler=straggler,
        jitter=max(0.0, uneven - late - no_input),
        fixed=float((handed + parts["update"] + parts["other"])[~is_slow].mean()),
        computing=float(typical.mean()),
        slow=tuple(ranks[k] for k in np.argsort(-of_rank) if is_slow[k]),
        of_rank=dict(zip(ranks, of_rank.tolist(), strict=True)),
        waits=dict(zip(ranks, waited.mean(axis=1).tolist(), strict=True)),
    )


def _apart(steps: Mapping[int, Sequence[Step]]) -> Losses | None:
    """The same for ranks that do not wait for each other: each loses only what it waits itself."""
    every = {rank: found for rank, own in steps.items() if (found := losses({rank: own})) is not None}
    if not every:
        return None
    exposed = {
        rank: np.mean([s.exposed for s in steps[rank] if not s.first][-LAST:]).item() for rank in every
    }
    return Losses(
        steps=min(found.steps for found in every.values()),
        step=_over(found.step for found in every.values()),
        input=_over(found.input for found in every.values()),
        communication=_over(exposed.values()),
        hidden=_over(np.mean([s.overlapped for s in steps[rank][-LAST:]]).item() for rank in every),
        straggler=0.0,
        jitter=0.0,
        fixed=_over(found.fixed for found in every.values()),
        computing=_over(found.computing for found in every.values()),
        slow=(),
        of_rank={rank: found.computing for rank, found in every.items()},
        waits={rank: found.input for rank, found in every.items()},
    )


def _aligned(steps: Mapping[int, Sequence[Step]]) -> dict[str, np.ndarray] | None:
    """Arrays (ranks, steps) of seconds, of the newest steps that every rank recorded and none traced in."""
    if not steps:
        return None
    by_number = [{s.step: s for s in steps[rank] if not s.first} for rank in sorted(steps)]
    common = sorted(set.intersection(*(set(own) for own in by_number)))[-LAST:]
    if not common:
        return None
    names = ("seconds", "input_wait", "exposed", "overlapped", "update", "other")
    return {
        name: np.array([[getattr(own[number], name) for number in common] for own in by_number])
        for name in names
    }


def _mean(array: np.ndarray) -> float:
    return float(np.maximum(array, 0.0).mean())


def _over(values: object) -> float:
    return float(np.mean(list(values)))  # type: ignore[call-overload]
