#!/usr/bin/env python3
"""What recipes reach on phantom cohorts beside a linear model on tissue volumes, over several seeds.

.venv/bin/python benchmarks/recipes_against_baseline.py examples/demo.yaml --cohorts 240:2 --seeds 0,1,2,3,4

Each seed is that of the split and of the weights at once, so that a pair of network and linear model shares
its held-out subjects. Stopped and started again it goes on where it was: finished runs stay in `--work`.
docs/explanation/recipes.md tells what it printed, and docs/results/registration.md what it did of raw scans:

.venv/bin/python benchmarks/recipes_against_baseline.py examples/demo.yaml --cohorts 120:2 --layout raw
.venv/bin/python benchmarks/recipes_against_baseline.py examples/demo.yaml --cohorts 120:2 --layout raw \
    --import-options '--prepare linear'
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import math
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

BIN = Path(sys.executable).parent


@dataclasses.dataclass(frozen=True)
class Trial:
    """One training on one split.

    Attributes:
        cohort: subjects and gap, as in `--cohorts`.
        recipe: name of its file.
        seed: of split and weights.
        network: AUC of the network on the held-out subjects.
        linear: AUC of the linear model on the same; None without tissue volumes.
        held_out: how many they are.
        seconds: of the whole training command, 0 where it was finished before that was written down.
    """

    cohort: str
    recipe: str
    seed: int
    network: float
    linear: float | None
    held_out: int
    seconds: float


def main() -> None:
    """Make the cohorts, train what is not there yet, print the table."""
    given = _arguments()
    trials = []
    total = len(given.cohorts) * len(given.recipes) * len(given.seeds)
    for cohort in given.cohorts:
        shards = _shards(given, cohort)
        for recipe in given.recipes:
            for seed in given.seeds:
                trials.append(_trial(given, cohort, shards, recipe, seed))
                told = trials[-1]
                print(
                    f"[{len(trials)}/{total}] {cohort} {told.recipe} seed {seed}: "
                    f"network {told.network:.3f}, linear {told.linear}, {told.seconds:.0f} s",
                    file=sys.stderr,
                    flush=True,
                )
    print(table(trials))
    if given.json is not None:
        given.json.write_text(json.dumps([dataclasses.asdict(trial) for trial in trials], indent=2) + "\n")


def table(trials: Sequence[Trial]) -> str:
    """Markdown: a line for each recipe on each cohort, in the order in which they come."""
    lines = [
        "| subjects:gap | recipe | network, mean ± sd (range) | linear, mean ± sd | difference ± error | s |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for cohort, recipe in dict.fromkeys((trial.cohort, trial.recipe) for trial in trials):
        some = [trial for trial in trials if (trial.cohort, trial.recipe) == (cohort, recipe)]
        network, linear = [t.network for t in some], [t.linear for t in some if t.linear is not None]
        pairs = [a - b for a, b in zip(network, linear, strict=True)] if linear else []
        error = f" ± {statistics.stdev(pairs) / math.sqrt(len(pairs)):.3f}" if len(pairs) > 1 else ""
        lines.append(
            f"| {cohort} | {recipe} | {_spread(network)} ({min(network):.2f}–{max(network):.2f}) "
            f"| {_spread(linear) if linear else 'none'} "
            f"| {format(statistics.mean(pairs), '+.3f') if pairs else ''}{error} "
            f"| {statistics.mean(t.seconds for t in some):.0f} |"
        )
    return "\n".join(lines)


def _spread(values: Sequence[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{deviation}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipes", nargs="+", type=Path, help="run configurations")
    parser.add_argument(
        "--cohorts", type=_listed, default=["240:2"], help="SUBJECTS:GAP, several with commas"
    )
    parser.add_argument("--seeds", type=lambda text: [int(s) for s in _listed(text)], default=[0, 1, 2, 3, 4])
    parser.add_argument("--phantom-size", type=int, default=48, help="voxels along a side of the images")
    parser.add_argument("--size", type=int, default=32, help="voxels along a side of the imported volumes")
    parser.add_argument("--disease", default="regional", help="of the phantoms: regional or diffuse")
    parser.add_argument("--layout", help="of `cingulum phantom`, such as raw: take the images of that layout")
    parser.add_argument(
        "--import-options", type=shlex.split, default=[], help="further ones, such as '--prepare linear'"
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="for all recipes")
    parser.add_argument("--work", type=Path, default=Path("data/recipes"), help="folder of cohorts and runs")
    parser.add_argument("--json", type=Path, help="write every trial there")
    return parser.parse_args()


def _listed(text: str) -> list[str]:
    return text.split(",")


def _shards(given: argparse.Namespace, cohort: str) -> Path:
    """A shard set of that cohort; both commands go on with, or keep, what is there."""
    subjects, gap = cohort.split(":")
    name = f"{given.disease}-{subjects}-{gap}-{given.phantom_size}"
    images = given.work / f"cohort-{name}"
    layout = [] if given.layout is None else ["--layout", given.layout]
    further = "".join(f"-{word.lstrip('-')}" for word in given.import_options)
    shards = given.work / f"shards-{name}{''.join(layout)}-{given.size}{further}"
    made = [
        "--subjects",
        subjects,
        "--size",
        str(given.phantom_size),
        "--gap",
        gap,
        "--groups",
        "AD,NC",
        "--seed",
        "0",
        "--disease",
        given.disease,
        *layout,
    ]
    _run([str(BIN / "cingulum"), "phantom", str(images), *made])
    _run(
        [
            str(BIN / "cingulum"),
            "import",
            str(images if given.layout is None else images / "sourcedata" / given.layout),
            str(shards),
            "--label",
            "diagnosis",
            "--size",
            str(given.size),
            *given.import_options,
        ]
    )
    return shards


def _trial(given: argparse.Namespace, cohort: str, shards: Path, recipe: Path, seed: int) -> Trial:
    """Train, unless that very recipe was trained before on that very set."""
    values = [*given.set, f"data.shards={shards}", f"data.split.seed={seed}", f"train.seed={seed}"]
    said = json.dumps([recipe.read_text(), values, given.ranks])
    name = f"{recipe.stem}-{seed}-{hashlib.sha256(said.encode()).hexdigest()[:12]}"
    folder = given.work / "runs" / name
    spent = given.work / "runs" / f"{name}.seconds"
    if not (folder / "result.json").is_file():
        launch = [str(BIN / "mpirun"), "-np", str(given.ranks)] if given.ranks > 1 else []
        began = time.monotonic()
        train = [
            str(BIN / "cingulum"),
            "train",
            str(recipe),
            *values,
            f"name={name}",
            f"runs={folder.parent}",
        ]
        _run([*launch, *train, "--resume"])
        spent.write_text(f"{time.monotonic() - began:.1f}\n")
    test = json.loads((folder / "result.json").read_text())["test"]
    baseline = folder / "baseline.json"
    # A set without tissue volumes has none.
    linear = json.loads(baseline.read_text())["auc"] if baseline.is_file() else None
    seconds = float(spent.read_text()) if spent.is_file() else 0.0
    return Trial(cohort, recipe.stem, seed, test["auc"], linear, test["n"], seconds)


def _run(command: Sequence[str]) -> None:
    """Run it quietly; show what it said if it fails.

    Raises:
        SystemExit: it failed.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main()
