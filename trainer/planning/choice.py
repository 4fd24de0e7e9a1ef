"""Which strategies are tried and compared, which one `train.strategy=auto` has chosen, and why. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from trainer.config import AutoConfig, StrategySection, strategy
from trainer.config.strategy import BY_NAME
from trainer.planning.placement.operations import OperationGraph
from trainer.planning.placement.ways import CONVOLUTIONS
from trainer.planning.profile import Profile

# A measured step must be so much slower than what another strategy promises.
WORTH = 1.1
# Strategies that one run tries, the first one included.
MOST_TRIED = 3


class Candidate(BaseModel):
    """A strategy that was planned.

    Attributes:
        label: what tells it from the others, for people.
        section: what `train.strategy` would have to be, but for defaults.
        step_s: predicted seconds of an update.
        memory_bytes: of the rank that is predicted to need most.
        idle: ranks that have nothing to do.
        fits: whether every rank has the memory that it is predicted to need.
        refused: why the network cannot be divided so; then there is neither time nor memory.
        measured_s: seconds of an update, when the run was trained so.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    label: str
    section: dict[str, Any]
    step_s: float | None = None
    memory_bytes: int | None = None
    idle: int = 0
    fits: bool = False
    refused: str | None = None
    measured_s: float | None = None

    @field_validator("section")
    @classmethod
    def _is_a_section(cls, keys: dict[str, Any]) -> dict[str, Any]:
        strategy.section(keys)
        return keys

    @property
    def expected_s(self) -> float:
        """Seconds of an update as far as is known; without end where it cannot be trained so."""
        known = self.step_s if self.measured_s is None else self.measured_s
        return known if self.fits and known is not None else float("inf")


class Choice(BaseModel):
    """What was tried, and what was chosen.

    Attributes:
        asked: keys of `train.strategy` by which it was decided.
        hosts: of the ranks that train.
        batch: samples of an update, and micro-batches that it accumulates.
        candidates: in the order in which they were tried.
        chosen: number of the one that trains.
        changes: of the mind: the update after which, and the numbers of the candidates.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    asked: dict[str, Any]
    hosts: tuple[str, ...]
    batch: tuple[int, int]
    candidates: tuple[Candidate, ...]
    chosen: int
    changes: tuple[tuple[int, int, int], ...] = ()

    @property
    def now(self) -> Candidate:
        """The one that trains."""
        return self.candidates[self.chosen]

    def told(self) -> str:
        """Return what was chosen and what comes next, in a line."""
        others = [one for number, one in enumerate(self.candidates) if number != self.chosen]
        second = min(others, key=lambda one: one.expected_s, default=None)
        if second is None or not second.fits:
            return f"strategy: {self.now.label}, the only one that can train this network on these ranks"
        return f"strategy: {_promise(self.now)}; next best: {_promise(second)}"

    def reconsidered(self, measured_s: float, *, step: int, left: int, restart_s: float) -> Choice:
        """Return the choice with a measured step, and with another strategy where one promises more.

        Another one is taken where its step, measured or else predicted, is so much shorter that the updates
        to come win more than the change costs. At most `MOST_TRIED` are tried.

        Args:
            measured_s: seconds of an update now.
            step: updates done.
            left: updates to come.
            restart_s: seconds that a change takes.
        """
        now = self.now.model_copy(update={"measured_s": measured_s})
        candidates = tuple(now if n == self.chosen else one for n, one in enumerate(self.candidates))
        choice = self.model_copy(update={"candidates": candidates})
        tried = sum(one.measured_s is not None for one in candidates)
        open_ = [
            number
            for number, one in enumerate(candidates)
            if number != self.chosen and (one.measured_s is not None or tried < MOST_TRIED)
        ]
        best = min(open_, key=lambda number: candidates[number].expected_s, default=self.chosen)
        expected = candidates[best].expected_s
        if measured_s < WORTH * expected or (measured_s - expected) * left <= restart_s:
            return choice
        change = (step, self.chosen, best)
        return choice.model_copy(update={"chosen": best, "changes": (*self.changes, change)})


def first(
    request: dict[str, Any], hosts: tuple[str, ...], batch: tuple[int, int], tried: list[Candidate]
) -> Choice | None:
    """Return the choice of the candidate with the shortest predicted step; None where none can be trained."""
    fitting = [number for number, one in enumerate(tried) if one.fits]
    if not fitting:
        return None
    best = min(fitting, key=lambda number: tried[number].expected_s)
    return Choice(asked=request, hosts=hosts, batch=batch, candidates=tuple(tried), chosen=best)


def recorded(plan: dict[str, Any] | None) -> Choice | None:
    """Return the choice that plan.json holds; None where there is none that can be read."""
    if not plan or "auto" not in plan:
        return None
    try:
        return Choice.model_validate(plan["auto"])
    except ValidationError:  # of another version: chosen anew
        return None


def _promise(one: Candidate) -> str:
    by = "predicted" if one.measured_s is None else "measured"
    idle = f"; {one.idle} rank(s) have nothing to do" if one.idle else ""
    return f"{one.label} ({one.expected_s:.3g} s per update, {by}{idle})"


# What is tried: strategies with their numbers of replicas and micro-batches.


def sections(
    asked: AutoConfig, ranks: int, samples: int, *, normalised: bool, speeds: Sequence[float]
) -> list[StrategySection]:
    """Return the sections to try, the user's own first, then those of few replicas last: see
    `StrategySection.tried`.

    Args:
        asked: which strategies.
        ranks: that train.
        samples: of a micro-batch, over all ranks.
        normalised: whether the network has batch norm.
        speeds: of each rank, relative to the fastest.
    """
    kinds = [one for name, one in BY_NAME.items() if name in asked.among]
    own = [strategy.section({"name": name}) for name in dict.fromkeys(asked.among) if name not in BY_NAME]
    return own + [
        section
        for replicas in range(ranks, 0, -1)
        if not (ranks % replicas or samples % replicas)
        for kind in kinds
        for section in kind.tried(
            replicas, ranks // replicas, samples // replicas, normalised=normalised, speeds=speeds
        )
    ]


def compared(
    network: OperationGraph, ranks: int, samples: int, profile: Profile | None
) -> list[StrategySection]:
    """Return the sections of each strategy that `plan` and `simulate` compare.

    Args:
        network: that is divided.
        ranks: that would train.
        samples: of a micro-batch.
        profile: of the network; None: devices are alike, and bytes count.
    """
    speeds = None if profile is None else _convolving(network, profile, ranks)
    return [one for kind in BY_NAME.values() for one in kind.compared(ranks, samples, speeds)]


def _convolving(network: OperationGraph, profile: Profile, ranks: int) -> list[float]:
    """The speed of each rank's convolutions, relative to the fastest, to three digits."""
    names = [one.name for one in network.operations if one.kind in CONVOLUTIONS]
    took = [
        sum(profile.forward_s(name, rank) + profile.backward_s(name, rank) for name in names)
        for rank in range(ranks)
    ]
    if not names or min(took) <= 0:
        return [1.0] * ranks
    return [round(min(took) / one, 3) for one in took]


def label(section: StrategySection) -> str:
    """Return what tells one candidate from another, for people."""
    words = [section.label if section.name not in BY_NAME else section.name]
    for key, what in (("replicas", "replicas"), ("micro_batches", "micro-batches")):
        if getattr(section, key, 1) > 1:
            words.append(f"{getattr(section, key)} {what}")
    if getattr(section, "shares", None):
        words.append("shares by speed")
    return ", ".join(words)
