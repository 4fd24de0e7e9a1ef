"""The strategy `parameter-server`, asynchronous: servers update the weights for each worker on its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainer.errors import ConfigError
from trainer.planning.simulation.collectives import WholeUpdate
from trainer.planning.simulation.fabric import ClusterFabric
from trainer.ranks.liveness import BEAT_S, LEAST_BEATS
from trainer.strategies.base import Plan, ProcessTask
from trainer.strategies.learner import Learner, Setup
from trainer.strategies.servers.synchronous import Servers, links_of

if TYPE_CHECKING:
    import keras

    from trainer.ranks.links import Links
    from trainer.ranks.world import World
    from trainer.strategies.async_servers.async_coordinator import Coordinator

# A process that says nothing for so long is given up, or `guards.timeout_s` if that is less; but never before
# it has missed `LEAST_BEATS`.
SILENCE_S = 15.0


def silence(timeout_s: float) -> float:
    """Return the seconds after which a silent process is given up, under this `guards.timeout_s`."""
    return max(LEAST_BEATS * BEAT_S, min(SILENCE_S, timeout_s))


class Asynchronous(Servers):
    """Workers do not wait for each other; docs/how-to/train-asynchronously.md.

    The last processes serve; server 0 runs the loop, the other processes compute its steps. None waits in a
    collective after the start, so that one may die. Which MPI settings that needs:
    docs/decisions/0022-asynchronous.md.
    """

    coordinator: Coordinator
    _everyones: Links

    def take_part(self, world: World, story: ProcessTask) -> int:
        """Coordinate and run the loop on server 0; compute steps or serve on others. May end the process."""
        from trainer.strategies.async_servers import async_main, async_other

        links = links_of(world)
        silence_s = silence(self.config.guards.timeout_s)
        if links.server != 0:
            return async_other.Other(self.config, links, silence_s, story).run()

        def run(main: World, coordinator: Coordinator) -> None:
            self._everyones, self.coordinator = links, coordinator
            story.alone(main)

        return async_main.coordinate(self.config, links, silence_s, run)

    def recorded(self, world: World) -> dict[str, Any]:
        """Return the workers' and servers' hosts: server 0, which asks, is not a worker."""
        links = self._everyones
        return {
            "world_size": len(links.workers),
            "hosts": [links.hosts[process] for process in links.workers],
            "servers": [links.hosts[process] for process in links.servers],
        }

    def plan(self, model: keras.Model, optimizer: keras.Optimizer, world_size: int) -> Plan:
        """Divide the steps: see `async_training.plan`; server 0 is alone in its world."""
        from trainer.strategies.async_servers import async_training

        return async_training.plan(self.config, self.server, model, len(self._everyones.workers))

    def on_cluster(self, label: str, model: keras.Model, fabric: ClusterFabric) -> WholeUpdate:
        """Refuse: steps do not follow each other."""
        raise ConfigError("Workers that do not wait for each other are not simulated.")

    def build(self, plan: Plan, setup: Setup) -> Learner:
        """Make server 0's learner; its timeline stays empty, since no step is computed here."""
        from trainer.strategies.async_servers.async_training import AsyncLearner

        return AsyncLearner(
            setup,
            self.coordinator,
            servers=self.server.count,
            accumulation=self.config.train.accumulation,
        )
