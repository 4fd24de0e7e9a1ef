"""Where volumes are read from: their folder, a copy on each host's scratch, or memory (`data.cache`).

Shards that do not fit into the memory are read past the page cache. What is read is the same, bit for bit.
Reasons: docs/decisions/0009-staging.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal

from trainer import byte_sizes
from trainer.config import RunConfig
from trainer.data.loading import memory, order
from trainer.data.loading.cache import KeptVolumes
from trainer.data.loading.node_scratch import ScratchFolder
from trainer.data.loading.scratch_copy import ScratchCopy
from trainer.data.shards.shards import ShardSet
from trainer.errors import CingulumError, ConfigError, Stopped
from trainer.progress import Reporter
from trainer.ranks.agreement import Agreed, agree
from trainer.ranks.watchdog import Beat
from trainer.ranks.world import World
from trainer.runs.preparation import Data

# Ranks tell each other this often how far their copies are.
TALK_EVERY_S = 0.2
# How long a copy that is given up may take to notice, before the process ends without it.
_LAST_WAIT_S = 5.0
_MIB = 2**20


@dataclass(frozen=True)
class Cached:
    """Data to read, and statistics of the cache.

    Attributes:
        data: reads from the cache.
        report: facts for run.json, the same on every rank; a collective. None without a cache.
    """

    data: Data
    report: Callable[[], dict[str, Any] | None]


@contextlib.contextmanager
def cached(
    config: RunConfig,
    data: Data,
    world: World,
    *,
    reporter: Reporter,
    beat: Beat,
    is_stopping: Callable[[], bool],
) -> Iterator[Cached]:
    """Yield data read as `data.cache` says; the cache is released at the end. A collective.

    Args:
        config: of the run.
        data: opened where they lie.
        world: all ranks.
        reporter: tells people, on rank 0.
        beat: called while ranks wait for a copy.
        is_stopping: whether this rank was asked to stop.

    Raises:
        Agreed: scratch or memory is too small or cannot be used, a shard is damaged, a copy makes no progress
            for `guards.timeout_s`; or Stopped.
    """
    if config.data.cache == "none":
        _choose_page_cache(config, data.shards, reporter)
        yield Cached(data, lambda: None)
    elif config.data.cache == "memory":
        _choose_page_cache(config, data.shards, reporter)
        kept = agree(world, lambda: _kept(config, data, world))
        yield Cached(data.read_from(kept), lambda: _memory_report(kept, world, reporter))
    else:
        copy = ScratchCopy(
            data.shards,
            ScratchFolder.find(config.data.scratch),
            config.data.reader_threads * world.local_size,
        )
        try:
            facts = _stage(copy, config, world, reporter, beat, is_stopping)
            shards = agree(world, copy.open)
            _choose_page_cache(config, shards, reporter)
            yield Cached(data.read_from(shards), lambda: facts)
        finally:
            copy.close(keep=config.data.scratch_keep)


@contextlib.contextmanager
def found(config: RunConfig, data: Data, world: World) -> Iterator[Data]:
    """Yield data to read once: from a copy on scratch where an earlier run has left one. A collective.

    Raises:
        Agreed: what lies on scratch under our name is not ours, or the copy is damaged.
    """
    if config.data.cache != "node-local":
        yield data
        return
    copy = ScratchCopy(data.shards, ScratchFolder.find(config.data.scratch), threads=1)
    try:
        shards = agree(world, lambda: copy.open() if copy.find() else data.shards)
        yield data.read_from(shards)
    finally:
        copy.close(keep=True)


def _choose_page_cache(config: RunConfig, shards: ShardSet, reporter: Reporter) -> None:
    """Each host's own choice: what is read is the same."""
    why = go_past(shards, config.data.page_cache)
    if why is not None:
        reporter.note(f"shards are read past the page cache: {why}")


def _kept(config: RunConfig, data: Data, world: World) -> KeptVolumes:
    available = memory.available_bytes()
    setting = config.data.cache_bytes
    budget = available // 2 if setting is None else byte_sizes.parse(setting)
    if budget > available:
        raise ConfigError(
            f"data.cache_bytes: {setting} is more than the {byte_sizes.as_text(available)} of memory that "
            f"{world.host} has left.",
            cure="Set it lower (training needs memory, too), or leave it out to use half of what is left.",
            key="data.cache_bytes",
        )
    # Training volumes come to any rank, those of validation to the same rank in every epoch.
    validation = data.split.validation
    batch = config.data.evaluation_batch
    per_rank = min(order.steps_per_epoch(len(validation), world.size * batch) * batch, len(validation))
    kept = KeptVolumes(
        data.shards,
        budget // world.local_size,
        rows={*data.split.train, *validation},
        preferred=validation,
        preferred_count=per_rank,
        with_maps=data.task.dense,
    )
    if kept.budget < kept.volume_bytes:
        raise ConfigError(
            f"data.cache_bytes: {byte_sizes.as_text(budget)} for the {world.local_size} ranks of "
            f"{world.host} is less than a volume for each, {byte_sizes.as_text(kept.volume_bytes)}.",
            cure="Set it higher, or data.cache=none.",
            key="data.cache_bytes",
        )
    return kept


def _memory_report(kept: KeptVolumes, world: World, reporter: Reporter) -> dict[str, Any]:
    uses = world.allgather_object([*dataclasses.astuple(kept.use()), kept.budget])
    hits, misses, arrays, nbytes, budgets = (sum(numbers) for numbers in zip(*uses, strict=True))
    rate = hits / max(1, hits + misses)
    kept_of = f"{byte_sizes.as_text(nbytes)} of {byte_sizes.as_text(budgets)}"
    reporter.note(f"cache: {kept_of} taken, {rate:.0%} of all reads answered from memory")
    return {
        "kind": "memory",
        "hits": hits,
        "misses": misses,
        "hit_rate": round(rate, 4),
        "kept": arrays,
        "kept_bytes": nbytes,
        "budget_bytes": budgets,
    }


class _Work:
    """Makes a copy in a thread of its own, so that the ranks can talk meanwhile."""

    def __init__(self, copy: ScratchCopy, limit_s: float, host: str) -> None:
        self._copy = copy
        self._limit_s = limit_s
        self._host = host
        self._done: Future[None] = Future()
        self._seen = (-1, time.monotonic())
        self._is_stuck = False
        # A daemon: a read that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="staging", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._copy.make()
            self._done.set_result(None)
        except BaseException as error:  # raised again by `outcome`, in the main thread
            self._done.set_exception(error)

    def state(self) -> str:
        """`done`, `failed`, `stuck` (for good) or `busy`."""
        if self._done.done() and not self._is_stuck:
            return "failed" if self._done.exception() else "done"
        progress, since = self._copy.progress(), self._seen[1]
        if progress != self._seen[0]:
            self._seen = (progress, time.monotonic())
        elif time.monotonic() - since > self._limit_s:
            self._is_stuck = True
        return "stuck" if self._is_stuck else "busy"

    def wait(self, seconds: float) -> None:
        self._thread.join(seconds)

    def outcome(self) -> None:
        """Raise what went wrong here; nothing on a rank that is merely not done."""
        if self._is_stuck:
            doing = "copying" if self._copy.bytes_wanted else "waiting for another process that copies"
            raise CingulumError(
                f"{self._host}: no progress for {self._limit_s:g} s while {doing} the shards to "
                f"{self._copy.folder} (guards.timeout_s).",
                cure="Check that the disk and the file server respond, or use data.cache=none.",
                path=self._copy.folder,
            )
        if self._done.done():
            self._done.result()


def _stage(
    copy: ScratchCopy,
    config: RunConfig,
    world: World,
    reporter: Reporter,
    beat: Beat,
    is_stopping: Callable[[], bool],
) -> dict[str, Any]:
    """Have a whole copy on every host; the ranks talk until all are done or one cannot be."""
    began = time.monotonic()
    reporter.note(f"shards are read from scratch: {copy.folder} ({copy.about_place})")
    work = _Work(copy, config.guards.timeout_s, world.host)
    try:
        with reporter.counting("copying to scratch", "MiB") as show:
            while True:
                beat(f"copying the shards to {copy.folder}", collective=True)
                said = world.allgather_object(
                    [work.state(), copy.bytes_copied, copy.bytes_wanted, is_stopping()]
                )
                states, copied, wanted, stops = zip(*said, strict=True)
                if sum(wanted):
                    show(sum(copied) // _MIB, -(-sum(wanted) // _MIB))
                if any(stops):
                    cure = "The same command, with or without --resume, starts copying again."
                    raise Agreed(Stopped("stopped while the shards were copied, as asked.", cure=cure))
                if not set(states) <= {"busy", "done"} or set(states) == {"done"}:
                    break
                work.wait(TALK_EVERY_S)
        agree(world, work.outcome)
    except BaseException:
        copy.cancel()
        work.wait(_LAST_WAIT_S)
        raise
    hosts = sorted({host for host, size in zip(world.hosts, wanted, strict=True) if size})
    seconds = round(time.monotonic() - began, 1)
    if hosts:
        reporter.note(f"{byte_sizes.as_text(sum(copied))} copied to {', '.join(hosts)} in {seconds} s")
    return {
        "kind": "node-local",
        "folder": str(copy.folder),
        "bytes_copied": sum(copied),
        "copied_to": hosts,
        "seconds": seconds,
    }


Choice = Literal["auto", "use", "bypass"]


def go_past(shards: ShardSet, choice: Choice, available: int | None = None) -> str | None:
    """Read a set past the page cache where configured or useful, and return why; call before its first read.

    A set that is read in another order in each epoch, and does not fit into the memory, is hardly ever found
    there; but each page of it is copied, and takes the place of another one.

    Args:
        shards: the set.
        choice: `auto` decides by the set's size, where it lies on a disk of this host: what a file system of
            other hosts makes of such reads is its own.
        available: bytes of memory that may still be taken; default: as `memory.available_bytes` finds it.

    Returns:
        Why, for people; None where it is read as usual.
    """
    if choice == "use":
        return None
    if choice == "auto":
        status = [(shards.path / name).stat() for name in sorted({volume.shard for volume in shards.volumes})]
        nbytes = sum(one.st_size for one in status)
        left = memory.available_bytes() if available is None else available
        # File systems without a disk of their own, as those of other hosts, have numbers of no device.
        if nbytes <= left or not all(os.major(one.st_dev) for one in status):
            return None
        why = f"{byte_sizes.as_text(nbytes)} do not fit into the {byte_sizes.as_text(left)} of memory left"
    else:
        why = "data.page_cache=bypass"
    shards.go_past_cache()
    return why
