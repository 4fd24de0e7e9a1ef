"""The strategy `parameter-server`, synchronous: servers update the weights for all workers at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from trainer.config import RingConfig, ServerConfig, micro_batch
from trainer.errors import ConfigError
from trainer.planning.communication import repeated
from trainer.planning.simulation.collectives import MOST_FLOWS, WholeUpdate, all_reduce, cost
from trainer.planning.simulation.fabric import ClusterFabric
from trainer.ranks import launch
from trainer.ranks.members import Members
from trainer.strategies.base import Plan, ProcessTask, Strategy, sizes_of
from trainer.strategies.learner import Learner, Setup
from trainer.strategies.servers import layout

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
        """Return which of `processes` launched processes are servers."""
        members = Members(self.server.count, self.server.placement, self.server.mode)
        members.roles(processes)
        return members

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

    def take_part(self, world: World, story: ProcessTask) -> int:
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

    def on_cluster(self, label: str, model: keras.Model, fabric: ClusterFabric) -> WholeUpdate:
        """Return gradients to servers, and weights back; see `Strategy.on_cluster`."""
        server, train = self.server, self.config.train
        workers = server.readers(fabric.ranks)
        if server.count > fabric.ranks:
            raise ConfigError(f"{server.count} servers need as many ranks; there are {fabric.ranks}.")
        if workers * server.count > MOST_FLOWS:
            raise ConfigError(f"{workers:,} workers of {server.count} servers are too many to be simulated.")
        each = micro_batch(train.global_batch, world_size=workers, accumulation=train.accumulation)
        moves = layout.exchange_of(server, sizes_of(model)[0], workers, one_host=fabric.hosts == 1)
        return WholeUpdate(
            f"{workers} worker(s), {server.count} server(s), {server.placement}",
            workers=workers,
            micro_batch=each,
            exchanged=cost(repeated(moves.rounds), fabric),
            parts=[1.0] * moves.parts,
            # Workers add statistics up among themselves.
            sum_s=all_reduce("ring", ClusterFabric(fabric.cluster, workers)).latency_s,
            servers=server.count,
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
