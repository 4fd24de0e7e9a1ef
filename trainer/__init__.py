"""Cingulum's parts that run on every rank, and what a Keras script of your own needs to go parallel.

    import trainer

    trainer.init()                                             # 1 before anything is computed
    x, y = trainer.shard(x, y)                                 # 2 this rank's share
    model.compile(trainer.DistributedOptimizer(optimizer))     # 3 gradients averaged over ranks
    model.fit(x, y, callbacks=trainer.callbacks())             # 4 same start, common metrics

docs/how-to/own-keras-script.md has the whole story. Nothing heavy is imported until it is used.
"""

from __future__ import annotations

import importlib
from typing import Any

from trainer import processor

# TensorFlow reads its environment once, when it is imported: by whatever module, so here.
processor.prepare_tensorflow()

_PUBLIC = {
    "broadcast": "trainer.strategies.first_update",
    "init": "trainer.own_script",
    "DistributedOptimizer": "trainer.strategies.distributed_optimizer",
    "SyncBatchNormalization": "trainer.models.batch_norm",
    "shard": "trainer.strategies.user_data",
    "callbacks": "trainer.strategies.callbacks",
}

__all__ = [
    "DistributedOptimizer",
    "SyncBatchNormalization",
    "broadcast",
    "callbacks",
    "init",
    "local_rank",
    "rank",
    "shard",
    "shutdown",
    "size",
]


def rank() -> int:
    """Return number of this process, from 0; rank 0 is the one that writes files."""
    return _world().rank


def size() -> int:
    """Return number of ranks (the world size)."""
    return _world().size


def local_rank() -> int:
    """Return number of this process among those of its host."""
    return _world().local_rank


def shutdown() -> None:
    """Leave the world; not needed at the end of a script."""
    _world().shutdown()


def _world() -> Any:
    from trainer.ranks import world

    return world.current()


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'trainer' has no attribute {name!r}")
