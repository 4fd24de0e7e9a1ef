#!/usr/bin/env python3
"""How well the block shuffle mixes, and how far it lets a disk read on, beside a full permutation.

.venv/bin/python benchmarks/shuffle_quality.py --picture shuffle-quality.png

docs/explanation/order-and-splits.md tells what it printed. The figures are counts: any machine prints the
same, but for the times.
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path

import numpy as np

from trainer.data.loading.order import BLOCK, WINDOW, block_shuffle, order

SHARD = 512  # volumes
SHARE = 0.3  # of the samples, in the class that comes last in the list
READ_TOGETHER = 4096  # samples
VARIANTS = {
    "full permutation": None,
    "blocks of 16, windows of 16": (16, 16),
    "blocks of 16, windows of 64": (16, 64),
    "blocks of 16, windows of 256": (16, 256),
    "blocks of 64, windows of 64": (64, 64),
    "blocks alone, of 16": (16, 1),
}


def epoch(n: int, number: int, blocks: tuple[int, int] | None, seed: int = 0) -> np.ndarray:
    """Positions of a whole epoch, int64 (n,), with (block, window) or as a full permutation."""
    if blocks is None:
        return order(seed, number, 0, n, n, shuffle="full")
    return block_shuffle(seed, number, np.arange(n), n, block=blocks[0], window=blocks[1])


def rank_correlation(sequence: np.ndarray) -> float:
    """Between a sample's place in the list and its time in the epoch (both are ranks already)."""
    return float(np.corrcoef(np.arange(len(sequence)), sequence)[0, 1])


def spread_of_class(sequence: np.ndarray, batch: int, share: float = SHARE) -> float:
    """Standard deviation of a class' count per batch, over that of draws without replacement.

    The list is sorted by class, which is the worst case. 1 is what a full permutation gives (hypergeometric).
    """
    n, whole = len(sequence), len(sequence) // batch * batch
    members = round(share * n)
    counts = (sequence[:whole].reshape(-1, batch) >= n - members).sum(axis=1)
    expected = batch * members / n * (1 - members / n) * (n - batch) / (n - 1)
    return float(np.sqrt(np.mean((counts - batch * members / n) ** 2) / expected))


def met_again(first: np.ndarray, second: np.ndarray, batch: int) -> float:
    """Of the pairs that share a batch in one epoch, how many do in the next; over what chance gives."""
    n = len(first)
    batch_of = np.empty(n, np.int64)
    batch_of[second] = np.arange(n) // batch
    rows = np.sort(batch_of[first[: n // batch * batch]].reshape(-1, batch), axis=1)
    same = 0
    for distance in range(1, batch):  # in a sorted row, the same batch is side by side
        same += int((rows[:, distance:] == rows[:, :-distance]).sum())
    pairs = rows.shape[0] * batch * (batch - 1) / 2
    return float(same / pairs / ((batch - 1) / (n - 1)))


def locality(sequence: np.ndarray) -> tuple[float, float]:
    """Of `READ_TOGETHER` samples that follow each other: shards they lie in, samples per unbroken stretch."""
    rows = np.sort(sequence[: len(sequence) // READ_TOGETHER * READ_TOGETHER].reshape(-1, READ_TOGETHER))
    shards = [len(np.unique(row // SHARD)) for row in rows]
    stretches = [1 + np.count_nonzero(np.diff(row) > 1) for row in rows]
    return float(np.mean(shards)), READ_TOGETHER / float(np.mean(stretches))


def measured(n: int, epochs: int, batch: int, blocks: tuple[int, int] | None) -> dict[str, float]:
    """All figures of one kind of shuffle, means over epochs."""
    sequences = [epoch(n, number, blocks) for number in range(epochs)]
    places = [locality(s) for s in sequences]
    return {
        "correlation": float(np.sqrt(np.mean([rank_correlation(s) ** 2 for s in sequences]))),
        "class spread": float(np.mean([spread_of_class(s, batch) for s in sequences])),
        "met again": float(np.mean([met_again(a, b, batch) for a, b in itertools.pairwise(sequences)])),
        "shards": float(np.mean([shards for shards, _ in places])),
        "stretch": float(np.mean([stretch for _, stretch in places])),
    }


def main() -> None:
    """Print a line for each kind of shuffle, then what a step costs; draw the picture where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=400_000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--picture", type=Path)
    given = parser.parse_args()
    print("| Order | rank correlation | class counts, sd | met again | shards in use | stretch |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, blocks in VARIANTS.items():
        found = measured(given.samples, given.epochs, given.batch, blocks)
        print(
            f"| {name} | {found['correlation']:.4f} | {found['class spread']:.2f} | "
            f"{found['met again']:.2f} | {found['shards']:.0f} | {found['stretch']:.1f} |"
        )
    for n in (100_000, 10_000_000):
        began, steps = time.process_time(), range(0, n // 256, max(1, n // 256 // 50))
        for step in steps:
            order(0, 0, step, 256, n, shuffle="blocks")
        print(f"{n:,} samples: {(time.process_time() - began) / len(steps) * 1e3:.2f} ms per step of 256")
    if given.picture:
        draw(given.picture, given.samples)


def draw(path: Path, n: int) -> None:
    """Which samples come when, for three orders: a dot per sample of every 100th."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    shown = {
        "full permutation": None,
        f"blocks of {BLOCK}, windows of {WINDOW}": (BLOCK, WINDOW),
        "blocks of 512, windows of 1": (512, 1),
    }
    plots = figure.subplots(1, len(shown), sharey=True)
    for plot, (name, blocks) in zip(plots, shown.items(), strict=True):
        times = np.arange(0, n, max(1, n // 4000))
        plot.plot(times, epoch(n, 0, blocks)[times], ",", color="#1f5fa8")
        plot.set_title(name, fontsize=10)
        plot.set_xlabel("time in the epoch")
        plot.set_xticks([0, n], ["0", f"{n:,}"])
        plot.set_yticks([0, n], ["0", f"{n:,}"])
    plots[0].set_ylabel("place in the training list")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
