"""`trainer.init` of a user's own script, and what is said at its end if its training reduced nothing.

The rule, for a world of several ranks without parameter servers: a Keras optimizer has updated weights, and
none that `trainer.DistributedOptimizer` made ever reduced gradients. Scripts that only predict or evaluate
update nothing, and a script that an error ended says that error alone.
"""

from __future__ import annotations

import atexit
import functools
from collections.abc import Mapping
from typing import Any

from trainer import processor
from trainer.ranks import starting
from trainer.ranks import world as worlds
from trainer.ranks.members import Members, Mode, Placement

_watching = False
_updated = False


def init(
    threads: int | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    servers: int = 0,
    placement: Placement = "separate",
    mode: Mode = "sync",
) -> worlds.World:
    """Find out who takes part; see `trainer.ranks.starting.init`. Call it before anything is computed.

    At the end of a script whose training reduced nothing over several ranks, rank 0 says so; and at once
    where TensorFlow was imported before, and computes without oneDNN though the processor gains by it.

    Raises:
        ConfigError: too few processes for `servers` servers.
        WorldError: the launch does not form one world, or TensorFlow has started with other threads.
    """
    global _watching
    members = Members(servers, placement, mode)
    world = starting.init(threads, environment=environment, members=members)
    if world.is_main and (line := processor.slow_import()):
        worlds.report(line)
    if world.size > 1 and world.is_main and not servers and not _watching:
        _watching = True
        _notice_updates()
        atexit.register(_speak_at_exit)
    return world


def _notice_updates() -> None:
    """Let Keras' optimizers note that one of them has updated weights.

    Nothing else outlives the training: models and optimizers may be gone when the script ends.
    """
    import keras

    of_keras = keras.Optimizer.apply

    @functools.wraps(of_keras)
    def apply(self: Any, *args: Any, **options: Any) -> Any:
        global _updated
        _updated = True
        return of_keras(self, *args, **options)

    keras.Optimizer.apply = apply


def _speak_at_exit() -> None:
    from trainer.strategies import first_update

    if _updated and not first_update.ever_reduced():
        worlds.report(
            f"warning: trained on {worlds.current().size} ranks, and nothing was averaged over them: "
            "every rank has trained a network of its own.\n"
            "  model.compile(optimizer=trainer.DistributedOptimizer(...)) and, in model.fit, "
            "callbacks=trainer.callbacks()."
        )
