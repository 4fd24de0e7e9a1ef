"""Samples of each step: a pure function of seed, epoch and step, the same at any world size.

A run may stop at any step and go on with another number of ranks: the sequence of global batches stays
the same. docs/explanation/order-and-splits.md tells why it is made this way.
"""

from __future__ import annotations

import functools
import math
from typing import Literal

import numpy as np

from trainer.config import micro_batch

# Shuffle any number of samples, computed position by position, for reading a disk block by block.
#
# Blocks of consecutive positions come in an order drawn anew each epoch, and the samples of a window of
# several blocks are mixed. Both are keyed bijections that are evaluated for single places, so that no list
# of the samples is made, however many there are. docs/explanation/order-and-splits.md tells how close it
# comes to a full permutation.


# A window mixes WINDOW blocks of BLOCK samples: chosen by benchmarks/shuffle_quality.py.
BLOCK = 16
WINDOW = 256
# Of the Feistel network. Few suffice where there are many places; a handful of places need more to reach
# every arrangement equally often.
_ROUNDS = 12


def block_shuffle(
    seed: int, epoch: int, places: np.ndarray, n: int, *, block: int = BLOCK, window: int = WINDOW
) -> np.ndarray:
    """Return the samples at some positions of an epoch's sequence.

    Over all places 0..n-1 each position comes exactly once. Integers alone decide: every machine and every
    version of numpy comes to the same. Time and memory grow with the places asked for, not with n.

    Args:
        seed: of the run.
        epoch: from 0.
        places: int64 (k,), each 0 to n-1.
        n: length of the training list.
        block: consecutive positions that are taken in the same window. Where blocks begin changes with
            the epoch; one of them is shorter where n is no multiple.
        window: blocks whose samples are mixed.

    Returns:
        int64 (k,), each 0 to n-1.
    """
    generator = np.random.Philox(np.random.SeedSequence([seed, epoch, _STREAM]))
    words = generator.random_raw(2 * _ROUNDS + 1)
    of_blocks, of_samples = words[:_ROUNDS], words[_ROUNDS:-1]
    begin = int(words[-1]) % n  # where the first block begins

    span = block * window
    number = places // span
    sizes = np.minimum(span, n - number * span)  # the last window may be shorter
    mixed = places.copy()
    for size in np.unique(sizes):  # one or two
        some = sizes == size
        inside = permuted(places[some] % span, int(size), of_samples, number[some])
        mixed[some] = number[some] * span + inside

    blocks = -(-n // block)
    missing = blocks * block - n  # in the last block
    turn_of_last = int(unpermuted(np.array([blocks - 1]), blocks, of_blocks)[0])
    mixed += np.where(mixed >= (turn_of_last + 1) * block - missing, missing, 0)
    return (permuted(mixed // block, blocks, of_blocks) * block + mixed % block + begin) % n


def permuted(places: np.ndarray, size: int, keys: np.ndarray, tweak: np.ndarray | None = None) -> np.ndarray:
    """Return where a keyed bijection of 0..size-1 maps some positions, each by itself.

    A generalised Feistel network over a x b >= size, walked until it ends below size: Black and Rogaway,
    "Ciphers with arbitrary finite domains", CT-RSA 2002. The round function is the finaliser of SplitMix64
    (Steele, Lea and Flood, OOPSLA 2014). It shuffles; it keeps no secrets.

    Args:
        places: int64 (k,), each 0 to size-1.
        size: of the domain.
        keys: uint64 (rounds,).
        tweak: int64 (k,), which of many bijections each place goes through; default: 0.

    Returns:
        int64 (k,).
    """
    return _walk(places, size, keys, tweak, inverse=False)


def unpermuted(
    places: np.ndarray, size: int, keys: np.ndarray, tweak: np.ndarray | None = None
) -> np.ndarray:
    """Return the positions that `permuted` maps to these."""
    return _walk(places, size, keys, tweak, inverse=True)


# Keeps the words apart from those of the full permutation of the same seed and epoch.
_STREAM = 1
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_SHIFTS = np.array([30, 27, 31], np.uint64)
_FACTORS = np.array([0xBF58476D1CE4E5B9, 0x94D049BB133111EB], np.uint64)


def _walk(
    places: np.ndarray, size: int, keys: np.ndarray, tweak: np.ndarray | None, *, inverse: bool
) -> np.ndarray:
    tweaks = np.zeros(len(places), np.uint64) if tweak is None else tweak.astype(np.uint64)
    found = _feistel(places.astype(np.uint64), size, keys, tweaks, inverse)
    while (outside := np.flatnonzero(found >= size)).size:
        found[outside] = _feistel(found[outside], size, keys, tweaks[outside], inverse)
    return found.astype(np.int64)


def _feistel(
    places: np.ndarray, size: int, keys: np.ndarray, tweaks: np.ndarray, inverse: bool
) -> np.ndarray:
    rows = math.isqrt(size - 1) + 1
    columns = np.uint64(-(-size // rows))
    halves = [places // columns, places % columns]
    sizes = [np.uint64(rows), columns]
    for turn in reversed(range(len(keys))) if inverse else range(len(keys)):
        changed = turn % 2
        other = halves[1 - changed]
        added = _mix(_mix(tweaks * _GOLDEN + keys[turn]) + other) % sizes[changed]
        if inverse:
            added = sizes[changed] - added
        halves[changed] = (halves[changed] + added) % sizes[changed]
    return halves[0] * columns + halves[1]


def _mix(words: np.ndarray) -> np.ndarray:
    words = (words ^ (words >> _SHIFTS[0])) * _FACTORS[0]
    words = (words ^ (words >> _SHIFTS[1])) * _FACTORS[1]
    return words ^ (words >> _SHIFTS[2])


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
