"""Every task under every strategy, with an option, on some ranks, to its last file: cells, and a run of each.

A cell is one value of each axis. Cells are drawn so that each two values of two axes are in one cell at least
(a covering array of strength two: Cohen, Dalal, Fredman, Patton, doi 10.1109/32.605761). Pairs that are
refused have a cell of their own each.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import yaml
from tiny_runs import make_shards

from jobs.local import mpirun

ROOT = Path(__file__).parents[2]
AXES: dict[str, tuple[Any, ...]] = {
    "task": ("classification", "covariates", "regression", "segmentation", "patches"),
    "strategy": (
        *("data", "servers", "asynchronous", "spatial", "filters", "hybrid", "hypergraph", "auto"),
        "own",
    ),
    "ranks": (1, 2, 3, 4),
    "option": (
        *("none", "bfloat16", "accumulation", "average", "dropout", "own statistics", "augmentation"),
        *("own network", "crossval", "resumed elsewhere"),
    ),
    "then": ("evaluate", "predict", "explain", "export", "diagnose", "report"),
}
STRATEGIES: dict[str, dict[str, Any]] = {
    "data": {"name": "data"},
    "servers": {"name": "parameter-server", "placement": "colocated"},
    "asynchronous": {"name": "parameter-server", "mode": "async"},
    "spatial": {"name": "spatial"},
    "filters": {"name": "filters"},
    "hybrid": {"name": "hybrid", "micro_batches": 2},
    "hypergraph": {"name": "hypergraph"},
    "auto": {"name": "auto"},
    "own": {"name": f"{ROOT / 'examples/local_sgd.py'}:LocalSgd"},
}
TASKS: dict[str, dict[str, Any]] = {
    "classification": {},
    "covariates": {"data": {"covariates": ["age", "sex"]}},
    "regression": {"task": {"name": "regression"}},
    "segmentation": {"task": {"name": "segmentation"}},
    "patches": {"task": {"name": "segmentation"}, "data": {"patch": {"size": [8, 8, 8]}}},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "bfloat16": {"train": {"precision": "mixed_bfloat16"}},
    "accumulation": {"train": {"accumulation": 2, "global_batch": 24}},
    "average": {"train": {"optimizer": {"ema": 0.9}}},
    "dropout": {"model": {"options": {"dropout": 0.3}}},
    "own statistics": {"train": {"sync_batch_norm": False}},
    "augmentation": {"data": {"augment": {"preset": "standard"}}},
    "own network": {"model": {"name": "OWN", "width": None, "options": {}}},
    "crossval": {"data": {"split": {"folds": 2}}},
    "resumed elsewhere": {"train": {"epochs": 1}},
}
OWN = '''import keras


def classes(input_shape, classes):
    """Classes or numbers."""
    x = volume = keras.Input(input_shape)
    x = keras.layers.Conv3D(4, 3, padding="same", activation="relu")(x)
    x = keras.layers.MaxPooling3D(2)(x)
    x = keras.layers.Conv3D(8, 3, strides=2, padding="same", activation="relu")(x)
    return keras.Model(volume, keras.layers.Dense(classes, dtype="float32")(keras.layers.Flatten()(x)))


def voxels(input_shape, classes):
    """A class for each voxel, by a skip that is concatenated."""
    x = volume = keras.Input(input_shape)
    skip = x = keras.layers.Conv3D(4, 3, padding="same", activation="relu")(x)
    x = keras.layers.Conv3D(8, 3, strides=2, padding="same", activation="relu")(x)
    x = keras.layers.Conv3DTranspose(4, 2, strides=2)(x)
    x = keras.layers.Concatenate()([skip, x])
    return keras.Model(volume, keras.layers.Conv3D(classes, 1, dtype="float32")(x))
'''


@dataclasses.dataclass(frozen=True)
class Cell:
    """One value of each axis."""

    task: str
    strategy: str
    ranks: int
    option: str
    then: str

    @property
    def name(self) -> str:
        """What tells it from others, in a file name, too."""
        return f"{self.task}-{self.strategy}-{self.ranks}-{self.option}-{self.then}".replace(" ", "_")


@dataclasses.dataclass(frozen=True)
class Refused:
    """Two values that do not go together.

    Attributes:
        pairs: values of two axes, each of the first with each of the second.
        said: what the refusal must say, a pattern.
    """

    pairs: Mapping[str, tuple[Any, ...]]
    said: str

    @property
    def is_of_what_follows(self) -> bool:
        """Whether it trains, and what follows is refused."""
        return "then" in self.pairs

    def holds(self, cell: Mapping[str, Any]) -> bool:
        """Return whether a cell, or part of one, has two such values."""
        return all(cell.get(axis) in values for axis, values in self.pairs.items())

    def each(self) -> Iterator[dict[str, Any]]:
        """Return the pairs."""
        for values in itertools.product(*self.pairs.values()):
            yield dict(zip(self.pairs, values, strict=True))


REFUSED = (
    Refused({"strategy": ("auto",), "option": ("own statistics",)}, r"train\.sync_batch_norm"),
    Refused({"task": ("segmentation", "patches"), "then": ("explain",)}, r"label map needs no explanation"),
)
LIMIT_S = 300
WRONG = r"Traceback|could not be (made|drawn|written)|Mt-KaHyPar gave no"
SIMPLE = {"task": "classification", "strategy": "data", "ranks": 2, "option": "none", "then": "evaluate"}


def refusal(cell: Mapping[str, Any]) -> Refused | None:
    """Return why a cell, or part of one, is refused; None where all of it works."""
    return next((one for one in REFUSED if one.holds(cell)), None)


def cells(seed: int = 0) -> list[Cell]:
    """Return cells in which each two values that train together meet, then one for each refusal."""
    draw = random.Random(seed)
    names = list(AXES)
    missing = {
        pair
        for a, b in itertools.combinations(names, 2)
        for pair in itertools.product(((a, one) for one in AXES[a]), ((b, one) for one in AXES[b]))
        if refusal(dict(pair)) is None
    }
    found = []
    while missing:
        # The cell, of some drawn around a pair that is missing, that covers most.
        best = max(
            (_around(min(missing, key=str), draw) for _ in range(30)), key=lambda one: _new(one, missing)
        )
        missing -= _pairs(best)
        found.append(Cell(**best))
    found += [Cell(**{**SIMPLE, **pair}) for one in REFUSED for pair in one.each()]
    return found


def _around(pair: tuple[tuple[str, Any], ...], draw: random.Random) -> dict[str, Any]:
    while True:
        one = {name: draw.choice(values) for name, values in AXES.items()} | dict(pair)
        if refusal(one) is None:
            return one


def _pairs(one: Mapping[str, Any]) -> set[tuple[tuple[str, Any], ...]]:
    return set(itertools.combinations(one.items(), 2))


def _new(one: Mapping[str, Any], missing: set[tuple[tuple[str, Any], ...]]) -> int:
    return len(_pairs(one) & missing)


@dataclasses.dataclass
class Ran:
    """What became of a cell.

    Attributes:
        cell: which.
        trained: whether it trained to its result.
        refused: the first line of the refusal that was due, of training or of what follows.
        refused_s: seconds until that was told.
        followed: exit code of the command that followed; None without one.
        seconds: of all of it.
        problem: what is wrong, for people; None where all is right.
    """

    cell: Cell
    trained: bool = False
    refused: str | None = None
    refused_s: float | None = None
    followed: int | None = None
    seconds: float = 0.0
    problem: str | None = None


class Bench:
    """Shards, images and a network that all cells share.

    Args:
        folder: for these, and for a folder of each cell.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._shards = make_shards(folder / "shards", subjects=40, maps=True)
        (folder / "own.py").write_text(OWN)
        self._images = []
        for number in range(2):
            path = folder / f"sub-{number:03d}_T1w.nii.gz"
            voxels = np.random.default_rng(number).normal(100, 10, (16, 16, 16)).astype("float32")
            nibabel.save(nibabel.Nifti1Image(voxels, np.diag([12.0, 12.0, 12.0, 1.0])), path)
            self._images.append(path)
        rows = "".join(f"sub-{number:03d}\t{60 + number}\tF\n" for number in range(2))
        (folder / "people.tsv").write_text(f"participant_id\tage\tsex\n{rows}")

    def run(self, cell: Cell) -> Ran:
        """Train a cell, then do what follows."""
        began = time.monotonic()
        ran = Ran(cell)
        ran.problem = self._train(cell, ran)
        if ran.trained and ran.problem is None:
            done = self._then(cell)
            ran.followed = done.returncode
            ran.problem = _judged(done, ran, refusal(vars(cell)), cell.then)
        if ran.refused is not None:
            ran.refused = ran.refused.replace(f"{self.folder / cell.name}/", "")
        ran.seconds = round(time.monotonic() - began, 1)
        return ran

    def _train(self, cell: Cell, ran: Ran) -> str | None:
        folder = self.folder / cell.name
        folder.mkdir()
        config = folder / "run.yaml"
        config.write_text(yaml.safe_dump(self._config(cell)))
        if cell.option == "crossval":
            done = _run(["crossval", config, "--ranks", _processes(cell)], 0)
        else:
            done = _run(["train", config], _processes(cell))
        why = refusal(vars(cell))
        if why is not None and not why.is_of_what_follows:
            return _judged(done, ran, why, "training")
        if cell.option == "resumed elsewhere" and done.returncode == 0:
            other = "spatial" if cell.strategy == "data" else "data"
            changes = ["--resume", "train.epochs=2", f"train.strategy={json.dumps(STRATEGIES[other])}"]
            done = _run(["train", config, *changes], cell.ranks)
        problem = _judged(done, ran, None, "training")
        if problem is not None:
            return problem
        ran.trained = True
        result = self._result(cell)
        return None if result.is_file() else f"training left no {result.name}"

    def _result(self, cell: Cell) -> Path:
        name = "crossval.json" if cell.option == "crossval" else "result.json"
        return self.folder / cell.name / "run" / name

    def _config(self, cell: Cell) -> dict[str, Any]:
        dense = cell.task in ("segmentation", "patches")
        model = (
            {"name": "unet3d", "width": 4, "options": {"depth": 2}} if dense else {"name": "tiny", "width": 2}
        )
        tree: dict[str, Any] = {
            "name": "run",
            "runs": str(self.folder / cell.name),
            "data": {"shards": str(self._shards)},
            "model": model,
            "train": {"epochs": 2, "global_batch": 12, "strategy": STRATEGIES[cell.strategy], "threads": 1},
        }
        for changes in (TASKS[cell.task], OPTIONS[cell.option]):
            tree = _merged(tree, changes)
        if cell.option == "own network":
            tree["model"] = {"name": f"{self.folder / 'own.py'}:{'voxels' if dense else 'classes'}"}
        return tree

    def _then(self, cell: Cell) -> Done:
        run = self._result(cell).parent
        if cell.then == "evaluate":
            return _run(["evaluate", run], 0 if cell.option == "crossval" else cell.ranks)
        # Of a cross-validation, some commands take one of its runs.
        one = run
        if cell.option == "crossval" and cell.then in ("predict", "export"):
            one = min(path for path in run.glob("fold-*") if path.is_dir())
        more: list[object] = []
        if cell.then == "predict":
            more = [*self._images, "--out", run / "predicted"]
            if cell.task == "covariates":
                more += ["--covariates", self.folder / "people.tsv"]
        if cell.then == "explain":
            more = ["--subjects", "2"]
        if cell.then == "export":
            more = ["--format", "onnx"]
        return _run([cell.then, one, *more], 0)


def _judged(done: Done, ran: Ran, why: Refused | None, what: str) -> str | None:
    """What is wrong with what a command did; a refusal that is due is kept."""
    if why is None:
        # A part that fails after training, such as a picture, is a warning and no failure.
        is_right = done.returncode == 0 and not re.search(WRONG, done.stdout + done.stderr)
        return None if is_right else f"{what}: code {done.returncode}: {_last(done)}"
    ran.refused, ran.refused_s = _first(done), done.told_s
    if done.returncode == 2 and re.search(why.said, done.stderr):
        return None
    return f"{what}: not refused by {why.said}: code {done.returncode}: {_last(done)}"


def _processes(cell: Cell) -> int:
    return cell.ranks + (cell.strategy == "asynchronous")


def _merged(tree: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(tree)
    for key, value in changes.items():
        found[key] = _merged(found.get(key, {}), value) if isinstance(value, dict) else value
    return found


@dataclasses.dataclass(frozen=True)
class Done:
    """What a command left behind, and the seconds after which it told an error."""

    returncode: int
    stdout: str
    stderr: str
    told_s: float | None


def _run(arguments: list[Any], ranks: int) -> Done:
    argv = [sys.executable, "-m", "cingulum", *map(str, arguments)]
    kept = {
        key: value for key, value in os.environ.items() if not re.match(r"(OMPI|PMIX|SLURM|HOROVOD)_", key)
    }
    environment = {**kept, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(ROOT)}
    if ranks > 1:
        argv, additions = mpirun.command(ranks, argv)
        environment |= additions
    began = time.monotonic()
    process = subprocess.Popen(
        argv, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    told: list[float] = []
    said: list[str] = []

    def listen() -> None:
        for line in process.stderr or ():
            said.append(line)
            if line.startswith("error: "):
                told.append(time.monotonic() - began)

    listening = threading.Thread(target=listen)
    listening.start()
    ending = threading.Timer(LIMIT_S, process.terminate)
    ending.start()
    with process:
        printed = process.stdout.read() if process.stdout else ""
        listening.join()
    late = "" if ending.is_alive() else f"\nnot done after {LIMIT_S} s"
    ending.cancel()
    first = round(told[0], 1) if told else None
    return Done(process.returncode, printed, "".join(said) + late, first)


def _lines(done: Done) -> Iterator[str]:
    for line in (done.stdout + "\n" + done.stderr).splitlines():
        if line.strip() and not re.match(r"WARNING: All log|[IW]0000|-{20}", line):
            yield line.strip()


def _first(done: Done) -> str:
    return next((line for line in _lines(done) if "error" in line), "")


def _last(done: Done) -> str:
    errors = [line for line in _lines(done) if re.search(rf"[Ee]rror|not done after|SIG|{WRONG}", line)]
    return " | ".join((errors or list(_lines(done)))[-3:])[:600]
