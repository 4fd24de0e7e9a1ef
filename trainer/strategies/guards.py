"""Guards: ranks that no longer hold the same weights, numbers that are no longer finite."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from trainer.errors import DivergenceError, NotFiniteError
from trainer.models.batch_norm import SyncBatchNormalization
from trainer.ranks.world import World, named


def weights_sha256(model: keras.Model) -> str:
    """Return the SHA-256 (hex) over path, dtype, shape and bytes of all weights of a model, in order."""
    return _digest(model.weights)


def check_divergence(model: keras.Model, world: World) -> None:
    """Compare the weights of all ranks; a collective, so every rank must call it.

    Statistics of batch norms that are each rank's own are left out (see `average_statistics`).

    Raises:
        DivergenceError: on every rank, with the ranks that differ from the rest and the first variable.
    """
    own = {id(v) for v in local_statistics(model)} if world.size > 1 else set()
    shared = [v for v in model.weights if id(v) not in own]
    digests = world.allgather_object(_digest(shared))
    if len(set(digests)) == 1:
        return
    most_common = Counter(digests).most_common(1)[0][0]
    odd = [rank for rank, digest in enumerate(digests) if digest != most_common]
    each = world.allgather_object([_digest([v]) for v in shared])
    first = next(i for i in range(len(shared)) if len({rank[i] for rank in each}) > 1)
    raise DivergenceError(
        f"The ranks no longer hold the same weights: {named(odd)} of {world.size} "
        f"(on {', '.join(sorted({world.hosts[r] for r in odd}))}) differ from the others; "
        f"the first variable that differs is {shared[first].path!r}.",
        cure="Resume from the last checkpoint. If it happens again: is the optimizer wrapped in "
        "trainer.DistributedOptimizer, and does every rank run the same program?",
    )


def check_finite(model: keras.Model, world: World, *, loss: float, where: str) -> None:
    """Make sure that neither the loss nor a weight is NaN or infinite; a collective.

    Raises:
        NotFiniteError: on every rank, as soon as one rank finds something.
    """
    bad = [] if np.isfinite(loss) else ["the loss"]
    bad += [v.path for v in model.weights if not np.all(np.isfinite(_array(v).astype(np.float32)))]
    if not world.any(bool(bad)):
        return
    found = world.allgather_object(bad[:1])
    rank = next(r for r, names in enumerate(found) if names)
    raise NotFiniteError(
        f"{found[rank][0]} is no longer a finite number on rank {rank}, {where}.",
        cure="Lower train.optimizer.learning_rate, lengthen train.schedule.warmup_epochs, or clip gradients "
        "with train.optimizer.global_clip_norm.",
    )


def local_statistics(model: keras.Model) -> list[Any]:
    """Return moving statistics that each rank keeps for itself: those of ordinary batch norm layers."""
    return [
        variable
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.BatchNormalization)
        and not isinstance(layer, SyncBatchNormalization)
        for variable in layer.non_trainable_variables
    ]


def average_statistics(model: keras.Model, world: World) -> None:
    """Give every rank the mean of the ranks' own moving statistics, before weights are saved or compared."""
    variables = local_statistics(model)
    if not variables or world.size == 1:
        return
    means = world.grouped_allreduce([v.value for v in variables], "mean", name="moving_statistics")
    for variable, mean in zip(variables, means, strict=True):
        variable.assign(mean)


def _digest(variables: Iterable[Any]) -> str:
    digest = hashlib.sha256()
    for variable in variables:
        array = _array(variable)
        digest.update(f"{variable.path}|{array.dtype}|{array.shape}|".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _array(variable: Any) -> np.ndarray:
    return np.asarray(variable.value)
