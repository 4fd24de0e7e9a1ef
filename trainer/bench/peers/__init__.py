"""Other frameworks with the same networks, timed as ours is: what a scaling study compares with.

`ddp` is PyTorch's DistributedDataParallel over Gloo, `multiworker` and `tf-parameter-server` are two
strategies of tf.distribute. `run` times several jobs at once, and `missing` says what is not here.
One compute thread per rank everywhere. docs/explanation/peers.md says what is equal and what is not.
"""

from __future__ import annotations

import importlib
from typing import Any

_PUBLIC = {
    "PeerJob": "trainer.bench.peers.job",
    "missing": "trainer.bench.peers.starting",
    "run": "trainer.bench.peers.starting",
}

__all__ = ["PeerJob", "missing", "run"]


def __getattr__(name: str) -> Any:
    # The peers' environment, which has few packages, imports this package, too.
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
