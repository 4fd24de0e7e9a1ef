"""How data parallelism divides an update over ranks, and what it sends."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainer.config import RingConfig
from trainer.planning import communication
from trainer.planning.exchange import Exchange
from trainer.strategies.base import Plan, sizes_of
from trainer.strategies.reduction import bytes_on_wire

if TYPE_CHECKING:
    import keras


@dataclasses.dataclass(frozen=True)
class DataPlan(Plan):
    """How an update is divided by data parallelism.

    Attributes:
        bytes_per_update: bytes that the busiest rank sends per update; on the ring all send as many, 2(n-1)/n
            of the gradients on the wire.
        reductions: messages of gradients per update: all-reduces, of which each is a bucket.
        batch_norms: layers whose statistics ranks take together, with a message each.
        algorithm: how gradients are combined, as `train.strategy.algorithm` names it.
        moves: what one update moves; too long for plan.json.
    """

    bytes_per_update: int
    reductions: int = 0
    batch_norms: int = 0
    algorithm: str = "ring"
    moves: Exchange | None = dataclasses.field(default=None, repr=False)

    def exchange(self) -> Exchange | None:
        """Return what one update moves."""
        return self.moves

    def __str__(self) -> str:
        who = "each rank" if self.algorithm in ("ring", "segmented-ring") else f"a rank ({self.algorithm})"
        sent = (
            f"{self.bytes_per_update / 2**20:.2f} MiB sent by {who}"
            if self.world_size > 1
            else "nothing sent"
        )
        return (
            f"data parallel: {self.global_batch} samples per update = {self.world_size} rank(s) x "
            f"{self.accumulation} micro-batch(es) x {self.micro_batch}; "
            f"{self.parameters:,} parameters on every rank; {sent} per update"
        )


def exchange(
    ring: RingConfig, sizes: Sequence[int], ranks: int, widths: Sequence[int] | None = None
) -> Exchange:
    """Return what one update moves: an all-reduce of each bucket, once per update whatever the accumulation.

    Pure. bfloat16 goes by an all-to-all and an all-gather, whose bytes are those of the ring.

    Args:
        ring: the `train.strategy` section.
        sizes: elements of each trainable variable.
        ranks: the world size.
        widths: bytes per element of each; default: 4.
    """
    buckets = bytes_on_wire(
        sizes,
        widths or [4] * len(sizes),
        kind=ring.reduction,
        bucket_mb=ring.bucket_mb,
        wire=ring.compression,
    )
    return Exchange(
        rounds=tuple(one for size in buckets for one in communication.reduction(ring.algorithm, size, ranks)),
        processes=ranks,
        parts=len(buckets),
        counted=sum(buckets) if ranks > 1 else 0,
        # Open MPI's all-reduce stays the ring where we gather ourselves: `launch.ALGORITHMS`.
        allreduce="ring" if ring.algorithm == "gather" else ring.algorithm,
    )


def plan(
    model: keras.Model,
    *,
    world_size: int,
    global_batch: int,
    accumulation: int = 1,
    ring: RingConfig | None = None,
) -> DataPlan:
    """Divide a global batch over ranks.

    Args:
        model: the network, built.
        world_size: ranks.
        global_batch: samples per update.
        accumulation: micro-batches per update.
        ring: the `train.strategy` section; default: its defaults.

    Raises:
        ConfigError: it cannot be divided evenly.
    """
    from trainer.models.batch_norm import SyncBatchNormalization

    ring = ring or RingConfig()
    sizes, widths = sizes_of(model)
    moves = exchange(ring, sizes, world_size, widths)
    return DataPlan.of(
        model,
        "data",
        world_size=world_size,
        global_batch=global_batch,
        accumulation=accumulation,
        bytes_per_update=round(max(one.sent for one in moves.payload)),
        reductions=moves.parts,
        batch_norms=sum(isinstance(layer, SyncBatchNormalization) for layer in model._flatten_layers()),
        algorithm=ring.algorithm,
        moves=moves,
    )
