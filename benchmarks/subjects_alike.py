#!/usr/bin/env python3
"""Judge made-up cohorts whose subjects were scanned several times: how often is `cingulum compare` wrong?

Two networks are equally good by construction. A false alarm is p < 0.05; an interval of 95 % should hold the
truth in 95 % of cohorts. Each scan's score has a part of its subject and a part of its own; `alike` is the
share of the subject's part, so the correlation of two scans of a subject: 1 for copies, 0 for strangers. The
networks share half of both. Prints the table of docs/explanation/evaluation.md.

.venv/bin/python benchmarks/subjects_alike.py --cohorts 4000 --processes 2
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import NormalDist

import numpy as np

from trainer.metrics import comparison
from trainer.metrics.tables import EvaluationTable

# Scans of each subject, None for one to five at random, and how alike they are.
PATTERNS: dict[str, tuple[int | None, float]] = {
    "1 scan": (1, 1.0),
    "5 copies": (5, 1.0),
    "5, half alike": (5, 0.5),
    "1 to 5 copies": (None, 1.0),
    "1 to 5, half alike": (None, 0.5),
    "1 to 5, not alike": (None, 0.0),
}
NAMES = {"auc": "AUC", "accuracy": "accuracy", "mae": "MAE", "dice": "Dice"}
_SHARED = 0.5  # of the variance, by both networks
_YEARS = 4.0
_DICE = (1.5, 0.7)  # mean and standard deviation of its logit


def simulate(
    sessions: int | None,
    alike: float,
    cohorts: int,
    seed: int,
    subjects: int = 20,
    auc: float = 0.75,
) -> dict[str, float]:
    """Return the share of cohorts with a false alarm, and that whose intervals hold the truth, by figure.

    Args:
        sessions: scans of each subject; None for one to five, drawn.
        alike: correlation of two scans of a subject, 0 to 1.
        cohorts: how many.
        seed: of the draws.
        subjects: of each cohort, half of either class.
        auc: of both networks.
    """
    rng = np.random.default_rng(seed)
    truth = _truth(auc)
    hits: dict[str, list[bool]] = defaultdict(list)
    for _ in range(cohorts):
        counts = rng.integers(1, 6, subjects) if sessions is None else np.full(subjects, sessions)
        home = np.repeat(np.arange(subjects), counts)
        for metric, run, pair in _judged(rng, home, alike, auc):
            hits[f"{NAMES[metric]}, false alarms"].append(pair["p_value"] < 0.05)
            hits[f"{NAMES[metric]}, coverage"].append(_holds(run[f"{metric}_interval"], truth[metric]))
            hits[f"{NAMES[metric]} difference, coverage"].append(_holds(pair["interval"], 0.0))
    return {name: float(np.mean(each)) for name, each in hits.items()}


def _judged(rng: np.random.Generator, home: np.ndarray, alike: float, auc: float) -> list[tuple]:
    """Each metric, the first network's figures, and the pair's, of one cohort."""
    true = home % 2
    apart = np.sqrt(2) * NormalDist().inv_cdf(auc)
    scores = _answers(rng, home, alike) + apart * (true - 0.5)
    likely = 1 / (1 + np.exp(-scores))
    errors = _YEARS * _answers(rng, home, alike)
    overlaps = 1 / (1 + np.exp(-(_DICE[0] + _DICE[1] * _answers(rng, home, alike))))
    ages = rng.uniform(50, 90, home.max() + 1)[home]
    tasks = (
        ("classification", ("NC", "AD"), true, [np.stack([1 - p, p], axis=1) for p in likely]),
        ("regression", (), ages, [(ages + error)[:, None] for error in errors]),
        ("segmentation", ("grey",), np.zeros(len(home)), [np.stack([d, d], axis=1) for d in overlaps]),
    )
    judged = []
    for task, classes, targets, both in tasks:
        names = tuple(map(str, home))
        tables = [
            EvaluationTable(
                task, classes, np.arange(len(home)), names, ("",) * len(home), targets, values, Path(name), ""
            )
            for name, values in zip("ab", both, strict=True)
        ]
        figures = comparison.metrics(tables[0])
        judged += [(pair["metric"], figures, pair) for pair in comparison.differences(tables, "ab")]
    return judged


def _answers(rng: np.random.Generator, home: np.ndarray, alike: float) -> np.ndarray:
    """Standard normal numbers (2, scans) of two networks."""

    def both(n: int) -> np.ndarray:
        return np.sqrt(_SHARED) * rng.normal(size=n) + np.sqrt(1 - _SHARED) * rng.normal(size=(2, n))

    return np.sqrt(alike) * both(home.max() + 1)[:, home] + np.sqrt(1 - alike) * both(len(home))


def _truth(auc: float) -> dict[str, float]:
    """The figures of a cohort without end."""
    half = NormalDist().inv_cdf(auc) / np.sqrt(2)
    grid = np.linspace(-8, 8, 4001)
    density = np.exp(-(grid**2) / 2) / np.exp(-(grid**2) / 2).sum()
    return {
        "auc": auc,
        "accuracy": NormalDist().cdf(half),
        "mae": _YEARS * float(np.sqrt(2 / np.pi)),
        "dice": float((density / (1 + np.exp(-(_DICE[0] + _DICE[1] * grid)))).sum()),
    }


def _holds(bounds: list[float] | None, truth: float) -> bool:
    """Whether an interval holds the truth; that of an area without a mistake is none, and does not."""
    return bounds is not None and bounds[0] <= truth <= bounds[1]


def _part(sessions: int | None, alike: float, cohorts: int, seed: int, subjects: int) -> dict[str, float]:
    return simulate(sessions, alike, cohorts, seed, subjects)


def main() -> None:
    """Print a table: a row per figure, a column per pattern of scans."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cohorts", type=int, default=2000)
    parser.add_argument("--subjects", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    with ProcessPoolExecutor(asked.processes) as pool:
        parts = [
            pool.submit(_part, sessions, alike, asked.cohorts, asked.seed + k, asked.subjects)
            for k, (sessions, alike) in enumerate(PATTERNS.values())
        ]
        columns = [part.result() for part in parts]
    print(f"{asked.cohorts} cohorts of {asked.subjects} subjects, seed {asked.seed}\n")
    print(f"| in % of cohorts | {' | '.join(PATTERNS)} |")
    print(f"| --- |{' --- |' * len(PATTERNS)}")
    for name in sorted(columns[0], key=lambda name: (name.split(", ")[1], list(columns[0]).index(name))):
        print(f"| {name} | {' | '.join(f'{100 * column[name]:.1f}' for column in columns)} |")


if __name__ == "__main__":
    main()
