"""The strategy `parameter-server`, synchronous: servers update the weights for all workers at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from trainer.config import RingConfig, ServerConfig
from trainer.ranks import launch
from trainer.ranks.members import Members
from trainer.strategies.base import Plan, Story, Strategy
from trainer.strategies.learner import Learner, Setup

if TYPE_CHECKING:
    import keras

    from trainer.ranks.links import Links
    from trainer.ranks.world import World


class Servers(Strategy):
    """What synchronous and asynchronous servers have in common: processes that serve."""

    @property
    def server(self) -> ServerConfig:
        """Its section."""
        return cast(ServerConfig, self.config.train.strategy)

    def members(self, processes: int) -> Members:
        """Return the servers, of so many processes."""
        found = Members(self.server.count, self.server.placement, self.server.mode)
        found.roles(processes)
        return found

    def environment(self) -> dict[str, str]:
        """Return the variables of the ring among workers."""
        return launch.ring_environment(RingConfig())

    def recorded(self, world: World) -> dict[str, Any]:
        """Return the servers' hosts."""
        links = links_of(world)
        return {"servers": [links.hosts[process] for process in links.servers]}


class Synchronous(Servers):
    """An update waits for the gradients of all workers; docs/how-to/parameter-server.md."""

    _one_host = False

    def take_part(self, world: World, story: Story) -> int:
        """Serve, or train with the other workers."""
        from trainer.strategies.servers.serving import serve, serving

        if world.is_server:
            return serve(world)
        with serving(world) as session:
            session.exit_code = story.together(world)
        return session.exit_code

    def everyone(self, world: World) -> World:
        """Return the workers, and servers that are processes of their own; a collective."""
        from trainer.strategies.servers.serving import everyone

        return everyone(world)

    def calibrate(self, model: keras.Model, world: World, recorded: dict[str, Any] | None) -> None:
        """See where the processes are; sums do not depend on it. See `Strategy.calibrate`."""
        self._one_host = links_of(world).one_host

    def plan(self, model: keras.Model, optimizer: keras.Optimizer, world_size: int) -> Plan:
        """Divide an update: see `strategy.plan`."""
        from trainer.strategies.servers import strategy

        train = self.config.train
        return strategy.plan(
            model,
            world_size=world_size,
            global_batch=train.global_batch,
            server=self.server,
            optimizer=optimizer,
            accumulation=train.accumulation,
            one_host=self._one_host,
        )

    def build(self, plan: Plan, setup: Setup) -> Learner:
        """Make the learner: see `strategy.build`."""
        from trainer.strategies.servers import strategy

        if not isinstance(plan, strategy.ServerPlan):
            raise TypeError("build follows a plan of this strategy")
        return strategy.build(plan, setup)


def links_of(world: World) -> Links:
    """Return the links to servers."""
    if world.links is None:
        raise RuntimeError("servers need processes that can reach each other")
    return world.links
