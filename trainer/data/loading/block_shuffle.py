"""Shuffle any number of samples, computed position by position, for reading a disk block by block.

Blocks of consecutive positions come in an order drawn anew each epoch, and the samples of a window of
several blocks are mixed. Both are keyed bijections that are evaluated for single places, so that no list of
the samples is made, however many there are. docs/explanation/order-and-splits.md tells how close it comes to
a full permutation.
"""

from __future__ import annotations

import math

import numpy as np

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
