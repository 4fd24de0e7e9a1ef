"""Samples of each step: a pure function of seed, epoch and step, the same at any world size.

A run may stop at any step and go on with another number of ranks: the sequence of global batches stays
the same. docs/explanation/order-and-splits.md tells why it is made this way.
"""

from __future__ import annotations

import functools
from typing import Literal

import numpy as np

from trainer.config import micro_batch
from trainer.data.loading.block_shuffle import BLOCK, WINDOW, block_shuffle

Shuffle = Literal["auto", "full", "blocks"]

# 'auto' takes a full permutation below this many samples.
FULL_BELOW = 100_000


def steps_per_epoch(n: int, global_batch: int) -> int:
    """Return the steps in which each of `n` samples is seen once: ceil(n / global_batch)."""
    return -(-n // global_batch)


def order(
    seed: int,
    epoch: int,
    step: int,
    global_batch: int,
    n: int,
    *,
    shuffle: Shuffle = "auto",
    block: int = BLOCK,
    window: int = WINDOW,
) -> np.ndarray:
    """Return the positions in the training list of one step, over all ranks.

    Each epoch is a permutation of 0..n-1, cut into steps. The last step of an epoch is filled up with the
    first positions of the same permutation; `weights` gives the fill weight 0.

    Args:
        seed: of the run.
        epoch: from 0.
        step: in the epoch, 0 to steps_per_epoch - 1.
        global_batch: samples per step, over all ranks.
        n: length of the training list.
        shuffle: 'full': one permutation of all samples, held in memory as n words; 'blocks': blocks of
            consecutive positions in another order each epoch, mixed within a window, computed for this step
            alone (`block_shuffle`); 'auto': 'full' below `FULL_BELOW` samples, else 'blocks'.
        block: 'blocks': samples per block.
        window: 'blocks': blocks that are mixed.

    Returns:
        int64 (global_batch,), each 0 to n-1.

    Raises:
        ValueError: there is no such step in an epoch.
    """
    _check_step(step, global_batch, n)
    if shuffle == "full" or (shuffle == "auto" and n < FULL_BELOW):
        return _permutation(seed, epoch, n)[_places(step, global_batch, n)]
    return _of_blocks(seed, epoch, step, global_batch, n, block, window).copy()


def weights(step: int, global_batch: int, n: int) -> np.ndarray:
    """Return the weight of each sample of a step in the loss, float32 (global_batch,).

    1 in a full step. In the last step of an epoch, 0 for the fill and global_batch / real samples for the
    others, so that the plain mean over the batch is the mean over the real samples.

    Raises:
        ValueError: there is no such step in an epoch.
    """
    _check_step(step, global_batch, n)
    real = min(n - step * global_batch, global_batch)
    return np.where(np.arange(global_batch) < real, global_batch / real, 0).astype(np.float32)


def micro_batch_positions(
    global_batch: int, rank: int, world_size: int, accumulation: int, micro: int
) -> slice:
    """Return the part of a global batch that a rank takes in its micro-batch number `micro`.

    The global batch is cut into `accumulation` global micro-batches, each of these into one part per rank.
    So one rank sees, in each micro-batch, what many ranks see together.

    Raises:
        ConfigError: the global batch cannot be cut into equal parts.
        ValueError: there is no such rank or micro-batch.
    """
    size = micro_batch(global_batch, world_size=world_size, accumulation=accumulation)
    if not (0 <= rank < world_size and 0 <= micro < accumulation):
        raise ValueError(f"no rank {rank} of {world_size}, or no micro-batch {micro} of {accumulation}")
    first = (micro * world_size + rank) * size
    return slice(first, first + size)


def _places(step: int, global_batch: int, n: int) -> np.ndarray:
    """Return the positions of a step in the sequence of its epoch, which starts again after its end."""
    return np.arange(step * global_batch, (step + 1) * global_batch, dtype=np.int64) % n


# Every sample of a step asks for the same positions, and some steps are read ahead.
@functools.lru_cache(maxsize=16)
def _of_blocks(
    seed: int, epoch: int, step: int, global_batch: int, n: int, block: int, window: int
) -> np.ndarray:
    return block_shuffle(seed, epoch, _places(step, global_batch, n), n, block=block, window=window)


# Every step of an epoch asks for the same permutation.
@functools.lru_cache(maxsize=4)
def _permutation(seed: int, epoch: int, n: int) -> np.ndarray:
    # Sorting raw Philox words, not Generator.permutation: numpy keeps bit streams for ever (NEP 19), but not
    # what its distributions and shuffles make of them, and a resumed run may meet a newer numpy.
    keys = np.random.Philox(np.random.SeedSequence([seed, epoch])).random_raw(n)
    return np.argsort(keys, kind="stable").astype(np.int64)


def _check_step(step: int, global_batch: int, n: int) -> None:
    if not 0 <= step < steps_per_epoch(n, global_batch):
        raise ValueError(f"no step {step} in an epoch of {n} samples, {global_batch} a step")
