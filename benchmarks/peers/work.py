"""What all peers' processes share: talking to their starter, batches, timing, saving weights.

It also runs in the peers' environment, so it needs nothing but NumPy.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from benchmarks.peers.job import PeerJob, PeerProcess

CLASSES = 2
LEARNING_RATE = {"adamw": 1e-3, "sgd": 0.01}
MOMENTUM = 0.9


class Starter:
    """The process that started us, over our standard streams; we end at once when it closes our input.

    So no process is left where the starter dies, or where another rank dies while we wait in a collective.
    """

    def __init__(self) -> None:
        self._go = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin:
            if line == "go\n":
                self._go.set()
        os._exit(0)

    def say_ready(self) -> None:
        """Write that this process has warmed up."""
        _write("ready")

    def wait_for_go(self) -> None:
        """Wait for the starter's next `go`, which comes when all processes are ready."""
        self._go.wait()
        self._go.clear()

    def say_done(self, found: dict[str, Any]) -> None:
        """Write what was found."""
        _write(f"done {json.dumps(found)}")

    def report(self, found: dict[str, Any]) -> NoReturn:
        """Write what was found; then serve the others until we are ended."""
        self.say_done(found)
        self.stay()

    def stay(self) -> NoReturn:
        """Wait to be ended."""
        while True:
            threading.Event().wait()


def _write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def timed(step: Callable[[int], None], job: PeerJob) -> list[float]:
    """Return the seconds of each timed step; `step` is given the number of its batch."""
    seconds = []
    for number in range(job.warm_up, job.warm_up + job.steps):
        started = time.perf_counter()
        step(number)
        seconds.append(time.perf_counter() - started)
    return seconds


def warmed_up(step: Callable[[int], None], job: PeerJob) -> None:
    """Take the steps before the timed ones."""
    for number in range(job.warm_up):
        step(number)


def measured(process: PeerProcess, starter: Starter, step: Callable[[int], None], model: Any) -> NoReturn:
    """Do a synchronous rank's work: warm up, and time the steps for each `go`.

    Args:
        process: ours.
        starter: ours.
        step: trains on the batch of this number, and returns when the weights are new.
        model: the Keras model that `process.job.saved` is to hold.
    """
    warmed_up(step, process.job)
    starter.say_ready()
    while True:
        starter.wait_for_go()
        seconds = timed(step, process.job)
        if process.job.saved and process.index == 0:
            save(model, Path(process.job.saved))
        starter.say_done({"seconds": seconds})


def batch(job: PeerJob, number: int, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a rank's part of a global batch: the same in every framework and at any world size.

    Returns:
        Volumes float32 `(b, D, H, W, 1)`; labels int32 `(b,)`, or label maps `(b, D, H, W)`.
    """
    rng = np.random.default_rng(number % job.batches)
    shape, count = volume(job), job.batch * job.ranks
    x = rng.normal(size=(count, *shape)).astype(np.float32)
    if is_dense(job):
        y = rng.integers(0, CLASSES, (count, *shape[:3])).astype(np.int32)
    else:
        y = (np.arange(count) % CLASSES).astype(np.int32)
    mine = slice(rank * job.batch, (rank + 1) * job.batch)
    return x[mine], y[mine]


def volume(job: PeerJob) -> tuple[int, int, int, int]:
    """Return (D, H, W, C) of a volume."""
    from trainer import models

    depth = 1 if models.describe(job.model).dimensions == 2 else job.size
    return depth, job.size, job.size, 1


def is_dense(job: PeerJob) -> bool:
    """Return whether the network has outputs for each voxel."""
    from trainer import models

    return bool(models.describe(job.model).dense)


def network(job: PeerJob) -> tuple[Any, Any]:
    """Return the registered network and its optimizer, built by Keras on the back end it has here."""
    import keras

    from trainer import models

    keras.utils.set_random_seed(1)
    model = models.build(
        job.model, volume(job), CLASSES, width=job.width, dense=is_dense(job), **dict(job.network)
    )
    if job.weights:
        load(model, Path(job.weights))
    rate = LEARNING_RATE[job.optimizer]
    made = {
        "adamw": lambda: keras.optimizers.AdamW(rate),
        "sgd": lambda: keras.optimizers.SGD(rate, momentum=MOMENTUM),
    }[job.optimizer]()
    made.build(model.trainable_variables)
    return model, made


def save(model: Any, path: Path) -> None:
    """Write all weights of a Keras model, by the paths of its variables."""
    import keras

    arrays = {variable.path: keras.ops.convert_to_numpy(variable.value) for variable in model.weights}
    with path.open("wb") as file:
        # Without allow_pickle: NumPy 2.1, which comes with PyTorch, takes it for an array's name.
        np.savez(file, **arrays)


def load(model: Any, path: Path) -> None:
    """Give a Keras model the weights that `save` wrote, in this framework or another."""
    with np.load(path, allow_pickle=False) as arrays:
        for variable in model.weights:
            variable.assign(arrays[variable.path])
