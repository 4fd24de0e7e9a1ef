"""Local SGD (Lin et al., arXiv 1808.07217): ranks train alone, and average weights every few updates."""

from pydantic import Field

from trainer.config import Section
from trainer.strategies.base import Strategy
from trainer.strategies.data import DistributedModel, broadcast_state


class Options(Section):
    every: int = Field(4, ge=1, description="updates between two averages")


class LocalSgd(Strategy):
    Options = Options

    def build(self, plan, setup):
        broadcast_state(setup.model, setup.optimizer, setup.world)  # all ranks start from the same weights
        learner = LocalModel(setup)
        learner.every = self.options.every
        return learner


class LocalModel(DistributedModel):
    def begin(self, start):
        self.done = start.step

    def update(self, batches):
        update = super().update(batches)  # reduces nothing: the optimizer is an ordinary one
        self.done += 1
        if self.done % self.every == 0:
            self.settle()
        return update

    def settle(self):
        """Average weights and optimizer state: before an evaluation, a checkpoint, and when it is due."""
        for number, variable in enumerate([*self.model.weights, *self.optimizer.variables]):
            if variable.dtype.startswith("float"):
                variable.assign(self.world.allreduce(variable.value, "mean", name=f"local_{number}"))

    def check(self):
        self.settle()  # between two averages, ranks differ on purpose
        super().check()

    def gather(self):
        self.settle()
        return super().gather()
