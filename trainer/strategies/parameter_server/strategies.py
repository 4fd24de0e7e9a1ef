"""The strategy `parameter-server`: servers hold the weights and apply the updates, together or one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from trainer.config import RingConfig, RunConfig, ServerConfig
from trainer.ranks import launch, mpi_world
from trainer.strategies.base import Learner, Members, Plan, Story, Strategy

if TYPE_CHECKING:
    import keras

    from trainer.ranks.mpi_world import Links
    from trainer.ranks.world import World
    from trainer.strategies.parameter_server.async_coordinator import Coordinator
    from trainer.tasks.base import PerSample
    from trainer.telemetry.timeline import Timeline

# An asynchronous process that says nothing for so long is given up, or `guards.timeout_s` if that is less.
SILENCE_S = 15.0


def of_mode(config: RunConfig) -> Strategy:
    """The one or the other, as `train.strategy.mode` says."""
    return (Asynchronous if config.train.strategy.is_asynchronous else Synchronous)(config)


class Servers(Strategy):
    """What both have in common: processes that serve, and batch norm and metrics over Horovod."""

    @property
    def server(self) -> ServerConfig:
        """Its section."""
        return cast(ServerConfig, self.config.train.strategy)

    def members(self, processes: int) -> Members:
        """The servers, of so many processes."""
        mpi_world.roles(processes, self.server.count, self.server.placement)
        return Members(self.server.count, self.server.placement, self.server.mode)

    def environment(self) -> dict[str, str]:
        """Of the ring among workers, and what servers need besides."""
        return launch.ring_environment(RingConfig()) | launch.server_environment(self.server)

    def recorded(self, world: World) -> dict[str, Any]:
        """On which hosts the servers are."""
        links = _links(world)
        return {"servers": [links.hosts[process] for process in links.servers]}


class Synchronous(Servers):
    """An update waits for the gradients of all workers; docs/how-to/parameter-server.md."""

    def take_part(self, world: World, story: Story) -> int:
        """Serve, or train with the other workers."""
        from trainer.strategies.parameter_server.serving import serve, serving

        if world.is_server:
            return serve(world)
        with serving(world) as session:
            session.exit_code = story.together(world)
        return session.exit_code

    def everyone(self, world: World) -> World:
        """The workers, and servers that are processes of their own; a collective."""
        from trainer.strategies.parameter_server.serving import everyone

        return everyone(world)

    def plan(self, model: keras.Model, optimizer: keras.Optimizer, world_size: int) -> Plan:
        """See `strategy.plan`."""
        from trainer.strategies.parameter_server import strategy

        train = self.config.train
        return strategy.plan(
            model,
            world_size=world_size,
            global_batch=train.global_batch,
            server=self.server,
            optimizer=optimizer,
            accumulation=train.accumulation,
        )

    def build(
        self,
        plan: Plan,
        model: keras.Model,
        optimizer: keras.Optimizer,
        world: World,
        *,
        loss: PerSample,
        score: PerSample,
        timeline: Timeline,
    ) -> Learner:
        """See `strategy.build`."""
        from trainer.strategies.parameter_server import strategy

        if not isinstance(plan, strategy.ServerPlan):
            raise TypeError("build follows a plan of this strategy")
        return strategy.build(plan, model, optimizer, world, loss=loss, score=score, timeline=timeline)


class Asynchronous(Servers):
    """Workers do not wait for each other; docs/how-to/train-asynchronously.md.

    The last processes serve; server 0 runs the loop, the other processes compute its steps. None waits in a
    collective after the start, so that one may die. Which MPI settings that needs:
    docs/decisions/0022-asynchronous.md.
    """

    coordinator: Coordinator
    _everyones: Links

    def take_part(self, world: World, story: Story) -> int:
        """Coordinate and run the loop on server 0; compute steps or serve on others. May end the process."""
        from trainer.strategies.parameter_server import async_main, async_other

        links = _links(world)
        silence_s = min(SILENCE_S, self.config.guards.timeout_s)
        if links.server != 0:
            return async_other.Other(self.config, links, silence_s, story).run()

        def run(main: World, coordinator: Coordinator) -> None:
            self._everyones, self.coordinator = links, coordinator
            story.alone(main)

        return async_main.coordinate(self.config, links, silence_s, run)

    def recorded(self, world: World) -> dict[str, Any]:
        """Who trains: the workers, of which server 0 is none."""
        links = self._everyones
        return {
            "world_size": len(links.workers),
            "hosts": [links.hosts[process] for process in links.workers],
            "servers": [links.hosts[process] for process in links.servers],
        }

    def plan(self, model: keras.Model, optimizer: keras.Optimizer, world_size: int) -> Plan:
        """See `async_plan.plan`; server 0 is alone in its world."""
        from trainer.strategies.parameter_server import async_plan

        return async_plan.plan(self.config, self.server, model, len(self._everyones.workers))

    def build(
        self,
        plan: Plan,
        model: keras.Model,
        optimizer: keras.Optimizer,
        world: World,
        *,
        loss: PerSample,
        score: PerSample,
        timeline: Timeline,
    ) -> Learner:
        """Server 0's own; `timeline` stays empty, since no step is computed here."""
        from trainer.strategies.parameter_server.async_training import AsyncLearner

        return AsyncLearner(
            model,
            optimizer,
            world,
            loss,
            score,
            self.coordinator,
            servers=self.server.count,
            accumulation=self.config.train.accumulation,
        )


def _links(world: World) -> Links:
    if world.links is None:
        raise RuntimeError("servers need processes that can reach each other")
    return world.links
