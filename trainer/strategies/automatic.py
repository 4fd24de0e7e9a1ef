"""`strategy: auto`: stands for the one that trainer/auto.py takes when a run starts."""

from __future__ import annotations

from typing import ClassVar, NoReturn

from trainer.config import RingConfig
from trainer.ranks import launch
from trainer.ranks.members import Members
from trainer.strategies.base import Plan, Strategy
from trainer.strategies.learner import Setup


class Automatic(Strategy):
    """What every strategy that may be chosen needs of MPI and Horovod; nothing is trained by it."""

    stands_for_another: ClassVar[bool] = True

    def members(self, processes: int) -> Members:
        """Return that ranks send each other messages."""
        return Members(messages=processes > 1)

    def environment(self) -> dict[str, str]:
        """Return the variables of the ring, with its defaults."""
        return launch.ring_environment(RingConfig())

    def build(self, plan: Plan, setup: Setup) -> NoReturn:
        """Refuse: another one was to be chosen before."""
        raise TypeError("no strategy was chosen")
