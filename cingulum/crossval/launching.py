"""Trains folds: each is a `cingulum train --resume` of its own, one after the other or several at once.

A fold is stopped, killed and resumed like any run. Ctrl-C, SIGTERM and SIGUSR2 to this process tell every
training to save (SIGUSR2, which mpirun forwards to its ranks); a training has its own session, so that
Ctrl-C in a terminal, on which mpirun would kill its ranks, reaches this process alone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO

from jobs.local import mpirun
from trainer import batch_environment
from trainer.crossval.folds import CrossValidation, Fold, hold
from trainer.errors import FoldError, RunError, Stopped
from trainer.ranks.stopping import StopRequest
from trainer.run_folder import record

POLL_S = 0.1
# A training that is still importing may lose a signal, so it is told again.
TELL_EVERY_S = 5.0
TAIL_LINES = 12
# How a training ends that SIGUSR2 met before it could answer: alone, or as mpirun tells it.
_KILLED_BY_USR2 = (-signal.SIGUSR2, 128 + signal.SIGUSR2)

Tell = Callable[[Fold, str], None]


@dataclass(frozen=True)
class Means:
    """What trainings are started with.

    Attributes:
        ranks: of each training; 1 without mpirun.
        at_once: trainings side by side, which share the host's cores and GPUs.
        cores: of this host.
        gpus: of this host, as CUDA_VISIBLE_DEVICES names them.
    """

    ranks: int
    at_once: int
    cores: int
    gpus: tuple[str, ...] = ()

    @classmethod
    def here(cls, *, ranks: int, at_once: int) -> Means:
        """Return the means with the cores and GPUs that this process may use."""
        gpus = _gpus() if at_once > 1 else ()
        return cls(ranks, at_once, len(os.sched_getaffinity(0)), gpus)

    def threads(self, fold: Fold) -> int | None:
        """Compute threads per rank; None: as the run itself would choose."""
        if self.at_once == 1 or fold.config.train.threads is not None:
            return fold.config.train.threads
        return max(1, self.cores // (self.at_once * self.ranks))

    def environment(self, slot: int) -> dict[str, str]:
        """Return the variables that give a training its GPUs. Not tested on several GPUs."""
        if not self.gpus:
            return {}
        mine = [self.gpus[(slot * self.ranks + rank) % len(self.gpus)] for rank in range(self.ranks)]
        return {"CUDA_VISIBLE_DEVICES": ",".join(dict.fromkeys(mine))}


def refuse_ranks() -> None:
    """Make sure that no launcher started us several times.

    Raises:
        RunError: mpirun or srun did.
    """
    environment = os.environ
    tasks = batch_environment.ranks(environment)
    if "OMPI_COMM_WORLD_SIZE" in environment or tasks > 1:
        raise RunError(
            "`cingulum crossval` starts the ranks of each fold itself; it cannot run under mpirun or "
            f"{batch_environment.STARTER}.",
            cure="Start it alone, with --ranks N.",
        )


def arguments(crossval: CrossValidation, fold: Fold, threads: int | None) -> list[str]:
    """Return command line of `cingulum` that trains a fold, or goes on with it."""
    sharing = [] if threads is None else [f"train.threads={threads}"]
    return ["train", str(crossval.stored), *fold.overrides, *sharing, "--resume"]


def train_all(
    crossval: CrossValidation, means: Means, *, keep_going: bool, lock: IO[str], finished: Tell
) -> None:
    """Train every unfinished fold.

    When one fails, no other is begun, and those under way are finished.

    Args:
        crossval: its folder is held by `lock`.
        means: how many ranks, how many trainings at once.
        keep_going: begin the others, too, when one fails.
        lock: what `folds.working` gave; trainings inherit it.
        finished: told of each fold that ends, with "" or, where it failed, with what it said.

    Raises:
        FoldError: trainings failed; with the exit code of the first.
        Stopped: as asked, after every training saved its state.
        KeyboardInterrupt: at the second Ctrl-C; trainings are killed.
    """
    waiting, running = list(crossval.unfinished), dict[int, _Training]()
    failed: list[tuple[Fold, int]] = []
    saved: list[Fold] = []
    with StopRequest(interrupt=True) as stop, _killed_at_the_end(running):
        while True:
            stopping = stop.requested or bool(saved)
            if not stopping and (keep_going or not failed):
                for slot in sorted(set(range(means.at_once)) - running.keys()):
                    if waiting:
                        running[slot] = _Training(crossval, waiting.pop(0), means, slot, lock)
            if not running:
                break
            time.sleep(POLL_S)
            for slot, training in list(running.items()):
                code = training.process.poll()
                if code is None:
                    if stop.requested:
                        training.tell_to_save()
                    continue
                del running[slot]
                if code == 0:
                    finished(training.fold, "")
                elif code == Stopped.exit_code or (stop.requested and code in _KILLED_BY_USR2):
                    saved.append(training.fold)
                else:
                    finished(training.fold, training.explain(code))
                    failed.append((training.fold, 128 - code if code < 0 else code))
    if failed:
        names = ", ".join(f"{fold.title} (exit code {code})" for fold, code in failed)
        raise FoldError(
            f"{len(failed)} of {len(crossval.folds)} runs failed: {names}.",
            exit_code=failed[0][1],
            cure="What is finished stays; the same command goes on with what is left.",
        )
    if crossval.unfinished:
        left = len(crossval.unfinished)
        raise Stopped(
            f"stopped, as asked; {left} of {len(crossval.folds)} runs are left to do, their state is saved.",
            cure="Go on with the same command.",
        )


class _Training:
    """The training of one fold, as a process of its own."""

    def __init__(self, crossval: CrossValidation, fold: Fold, means: Means, slot: int, lock: IO[str]) -> None:
        self.fold = fold
        self._told_at = -TELL_EVERY_S
        words = arguments(crossval, fold, means.threads(fold))
        line, additions = [sys.executable, "-m", "cingulum", *words], dict[str, str]()
        if means.ranks > 1:
            outlives = fold.config.train.strategy.is_asynchronous
            line, additions = mpirun.command(means.ranks, line, outlives=outlives)
        with fold.log.open("ab") as log:
            log.write(f"--- {record.now()} cingulum {' '.join(words)}\n".encode())
            log.flush()
            self._begins = log.tell()
            self.process = subprocess.Popen(
                line,
                env={**os.environ, **additions, **means.environment(slot)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(lock.fileno(),),
            )
        hold(lock, self.process.pid)

    def tell_to_save(self) -> None:
        """Ask for a checkpoint and the end; again now and then."""
        if time.monotonic() - self._told_at >= TELL_EVERY_S:
            self._told_at = time.monotonic()
            self.process.send_signal(signal.SIGUSR2)

    def explain(self, code: int) -> str:
        """Return how it ended, with the error that it printed."""
        try:
            with self.fold.log.open("rb") as log:
                log.seek(self._begins)
                lines = log.read().decode(errors="replace").splitlines()
        except OSError as error:  # no reason to end the other trainings
            lines = [f"(it cannot be read: {error.strerror})"]
        first = next((k for k, line in enumerate(lines) if "error: " in line), len(lines) - TAIL_LINES)
        said = "\n".join(lines[max(0, first) :][:TAIL_LINES])
        how = f"was killed by signal {-code}" if code < 0 else f"failed with exit code {code}"
        return f"{self.fold.title} {how}; {self.fold.log} says:\n{said or '(nothing)'}"


@contextlib.contextmanager
def _killed_at_the_end(running: dict[int, _Training]) -> Iterator[None]:
    """Leave no training behind, whatever ends us; mpirun takes its ranks with it on SIGTERM."""
    try:
        yield
    finally:
        for training in running.values():
            training.process.terminate()
        for training in running.values():
            try:
                training.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                training.process.kill()
                training.process.wait()


def _gpus() -> tuple[str, ...]:
    """GPUs of this host that we may use, without loading TensorFlow."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return tuple(name.strip() for name in chosen.split(",") if name.strip())
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    listed = subprocess.run([tool, "-L"], capture_output=True, text=True, check=False)
    lines: Sequence[str] = listed.stdout.splitlines() if listed.returncode == 0 else ()
    return tuple(str(k) for k, _ in enumerate(line for line in lines if line.startswith("GPU ")))
