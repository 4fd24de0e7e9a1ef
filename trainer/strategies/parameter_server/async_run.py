"""One asynchronous run: what each process does from its start to its end.

The last processes serve; server 0 is the main one. No process waits in a collective after the start, so that
one may die. Which MPI settings that needs: docs/decisions/0022-asynchronous.md.
"""

from __future__ import annotations

from trainer.config import RunConfig
from trainer.strategies.parameter_server.async_main import Train, coordinate
from trainer.strategies.parameter_server.async_other import Other
from trainer.world import World

# A process that says nothing for so long is given up, or `guards.timeout_s` if that is less.
SILENCE_S = 15.0


def take_part(config: RunConfig, world: World, train: Train) -> int:
    """Do this process's part; returns its exit code, or ends the process.

    Args:
        config: of the run, checked.
        world: with links.
        train: called on server 0 with its world and how it serves; prints and raises as `run.train` does.
    """
    if world.links is None:
        raise RuntimeError("asynchronous training needs processes that can reach each other")
    links = world.links
    silence_s = min(SILENCE_S, config.guards.timeout_s)
    if links.server == 0:
        return coordinate(config, links, silence_s, train)
    return Other(config, links, silence_s).run()
