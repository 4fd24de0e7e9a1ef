"""Predicted seconds and memory of a step, for many assignments at once. Pure.

The model: a device does its chunks, passes of micro-batches through stages, in the order of `schedule`, one
after the other. A chunk starts when its device is free and all that it reads has arrived. Sending takes no
time of the device. When a chunk ends, and not before, all that another device needs of it leaves as one
message; a tensor that several partitions of that device read is in it once, with the most bytes that any of
them reads. The gradients of what a device has received go back once too, when the first of its stages that
read it has done its backward pass, the last of them to do so. A message occupies its link, from one
device to another, for latency + bytes / bandwidth, one message after the other. Within a device nothing takes
time. Stages that compute again (`recomputing`) begin a backward pass with that, unless the device has just
done the forward pass, and have all activations of a micro-batch only then. In the end each device reduces the
gradients of its partitions and updates them; the step lasts until the last device has.

Not in it: reductions and updates that begin before the last chunk of their device, and what several links
share.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainer.planning.stages.problem import Floats, Schedule, StageProblem
from trainer.planning.stages.schedule import order

Integers = NDArray[np.int64]


def step_s(problem: StageProblem, chromosomes: ArrayLike) -> Floats:
    """Return the seconds of a step of each assignment.

    Args:
        problem: with P partitions and D devices.
        chromosomes: (N, P) integers, the device of each partition.

    Returns:
        (N,).

    Raises:
        ValueError: the assignments are not of this shape, or name a device that the problem lacks.
    """
    runs = _runs(_checked(problem, chromosomes))
    # Those with more stages have more chunks: sorted, the ones that are not done yet come first.
    falling = np.argsort(-runs.stage_count, kind="stable")
    runs = _Runs(*(array[falling] for array in runs))
    seconds = np.empty(len(falling))
    seconds[falling] = _play(problem, runs)
    return seconds


def memory(problem: StageProblem, chromosomes: ArrayLike) -> Floats:
    """Return the most bytes that each device holds: state, and activations of micro-batches in flight.

    Args:
        problem: see `step_s`.
        chromosomes: see `step_s`.

    Returns:
        (N, D).
    """
    runs = _runs(_checked(problem, chromosomes))
    table = _table(problem.partitions, problem.micro_batches, problem.schedule)
    whole = _of_stages(runs, np.broadcast_to(problem.kept_bytes, runs.stage.shape))
    found = problem.recomputed
    kept = whole if found is None else found.kept_bytes[_ends(runs)]
    none = np.zeros((len(kept), 1))
    passes = table.passes[:, runs.stage_count].T  # (N, slots)
    changes = np.take_along_axis(np.concatenate([kept, -kept, none], axis=1), passes, axis=1)
    # What a stage has besides, for the time of its backward pass.
    again = np.take_along_axis(np.concatenate([0 * kept, whole, none], axis=1), passes, axis=1)
    holders = np.take_along_axis(np.tile(runs.holder, 2), passes % (2 * problem.partitions), 1)
    most = np.empty((len(kept), problem.devices))
    for device in range(problem.devices):
        here = holders == device
        flying = np.cumsum(np.where(here, changes, 0.0), axis=1) + np.where(here, again, 0.0)
        most[:, device] = (runs.device == device) @ problem.state_bytes + flying.max(axis=1)
    return most


def overflow(problem: StageProblem, chromosomes: ArrayLike) -> Floats:
    """Return how far each assignment is over the limits of memory, as a part of them, added up; (N,).

    A limit of 0 counts as 1 byte.
    """
    if np.isinf(problem.memory_bytes).all():
        return np.zeros(len(_checked(problem, chromosomes)))
    limits = problem.memory_bytes
    over = np.maximum(memory(problem, chromosomes) - limits, 0.0)
    return (over / np.maximum(limits, 1.0)).sum(axis=1)


def fitness(problem: StageProblem, chromosomes: ArrayLike) -> Floats:
    """Return the seconds of a step, plus a penalty where memory is short; (N,), less is better.

    The penalty is more than any step can last, and grows with the overflow: whatever fits is better than
    what does not.
    """
    over = overflow(problem, chromosomes)
    return step_s(problem, chromosomes) + np.where(over > 0, (1 + over) * longest_s(problem), 0.0)


def longest_s(problem: StageProblem) -> float:
    """Return seconds that no step exceeds: everything one after the other, at its slowest."""
    passes = problem.forward_s + problem.backward_s
    if problem.again_s is not None:
        passes = passes + problem.again_s[0]
    total = (problem.micro_batches * passes + problem.final_s).max(axis=1).sum()
    pairs = np.nonzero(~np.eye(problem.devices, dtype=bool))
    for moved in problem.moved_bytes[problem.moved_bytes > 0]:
        total += 2 * problem.micro_batches * problem.message_s(moved, *pairs).max(initial=0.0)
    return float(total)


class _Table(NamedTuple):
    """Chunk of each slot (row) of the order with each number of stages (column); 2 P where there is none.

    Attributes:
        passes: stage of a forward pass, P + stage of a backward one.
        micro: micro-batch.
    """

    passes: Integers
    micro: Integers


@functools.lru_cache(maxsize=16)
def _table(partitions: int, micro_batches: int, schedule: Schedule) -> _Table:
    shape = (2 * micro_batches * partitions, partitions + 1)
    table = _Table(np.full(shape, 2 * partitions), np.zeros(shape, np.int64))
    for count in range(1, partitions + 1):
        chunks = order(count, micro_batches, schedule)
        back = [partitions * (chunk.passing == "backward") for chunk in chunks]
        table.passes[: len(chunks), count] = [chunk.stage for chunk in chunks] + np.array(back)
        table.micro[: len(chunks), count] = [chunk.micro for chunk in chunks]
    return table


class _Runs(NamedTuple):
    """Assignments and their stages.

    Attributes:
        device: (N, P), of each partition.
        stage: (N, P), of each partition.
        stage_count: (N,), S.
        holder: (N, P), device of each stage; 0 of stages that there are not.
    """

    device: Integers
    stage: Integers
    stage_count: Integers
    holder: Integers


def _checked(problem: StageProblem, chromosomes: ArrayLike) -> Integers:
    devices = np.asarray(chromosomes)
    if devices.ndim != 2 or devices.shape[1] != problem.partitions or devices.dtype.kind not in "iu":
        raise ValueError(f"assignments must be integers, (N, {problem.partitions}), not {devices.shape}")
    if devices.size and not (devices.min() >= 0 and devices.max() < problem.devices):
        raise ValueError(f"devices must be from 0 to {problem.devices - 1}")
    return devices.astype(np.int64, copy=False)


def _runs(device: Integers) -> _Runs:
    stage = np.zeros_like(device)
    np.cumsum(device[:, 1:] != device[:, :-1], axis=1, out=stage[:, 1:])
    holder = np.zeros_like(device)
    np.put_along_axis(holder, stage, device, axis=1)
    return _Runs(device, stage, stage[:, -1] + 1, holder)


def _of_stages(runs: _Runs, values: Floats) -> Floats:
    """Return sums over the partitions of each stage; (N, P, ...) to (N, P, ...)."""
    member = runs.stage[:, None, :] == np.arange(runs.stage.shape[1])[:, None]
    return np.einsum("nsp,np...->ns...", member.astype(np.float64), values, optimize=True)


def _ends(runs: _Runs) -> tuple[Integers, Integers]:
    """Return the first and the last partition of each stage, both (N, P); of stages that there are not, 0."""
    each = np.arange(runs.stage.shape[1])
    member = runs.stage[:, None, :] == each[:, None]
    return member.argmax(axis=2), (member * each).max(axis=2)


class _Messages(NamedTuple):
    """What leaves after each pass, forward ones first.

    Attributes:
        seconds: (N, 2 P, D), that a message to each device takes; -inf where none is sent.
        readers: (2 N P, R), the stages whose same pass needs it, filled up with P: few stages read one.
    """

    seconds: Floats
    readers: Integers


def _messages(problem: StageProblem, runs: _Runs) -> _Messages:
    count, partitions = runs.device.shape
    everywhere = np.arange(problem.devices)
    at = runs.device[:, :, None] == everywhere  # (N, P, D)
    read = np.zeros(at.shape)  # bytes of partition p that any on device e reads
    for q in range(1, partitions):
        np.maximum(read, problem.moved_bytes[:, q, None] * at[:, q, None, :], out=read)
    sent = _of_stages(runs, read * ~at)  # (N, stage, D)
    # Which stage (last axis) reads which one (middle) on another device.
    pairs = _of_stages(runs, np.broadcast_to(problem.moved_bytes > 0, (count, partitions, partitions)))
    pairs = _of_stages(runs, pairs.swapaxes(1, 2)).swapaxes(1, 2)
    together = runs.holder[:, :, None] == runs.holder[:, None, :]
    reads = (pairs > 0) & ~together
    # The first stage of a device that reads a stage is the one that sends the gradients back.
    before = np.tri(partitions, k=-1, dtype=bool).T
    returns = reads & ~((reads.astype(np.float64) @ (together & before)) > 0)
    received = np.take_along_axis(sent, runs.holder[:, None, :].repeat(partitions, 1), axis=2)
    holds = runs.holder[:, :, None] == everywhere
    back = np.where(returns, received, 0.0).swapaxes(1, 2) @ holds.astype(np.float64)

    moved = np.concatenate([sent, back], axis=1)
    source = np.tile(runs.holder, 2)[:, :, None]
    # Devices send nothing to themselves; what the diagonal holds is not looked at.
    seconds = np.full(moved.shape, -np.inf)
    n, v, target = np.nonzero(moved)
    seconds[n, v, target] = problem.message_s(moved[n, v, target], source[n, v, 0], target)
    return _Messages(seconds, _listed(np.concatenate([reads, returns.swapaxes(1, 2)], axis=1)))


def _listed(reads: NDArray[np.bool_]) -> Integers:
    """Return which are true along the last axis, of length P, filled up with P; all other axes as one."""
    flat = reads.reshape(-1, reads.shape[-1])
    row, which = np.nonzero(flat)
    counts = np.bincount(row, minlength=len(flat))
    before = np.cumsum(counts) - counts
    found = np.full((len(flat), int(counts.max(initial=0))), reads.shape[-1])
    found[row, np.arange(len(row)) - before[row]] = which
    return found


def _again_s(problem: StageProblem, runs: _Runs) -> Floats | None:
    """Return the seconds to compute each stage again, (N P,); None where everything is kept."""
    recomputed = problem.recomputed
    if recomputed is None:
        return None
    first, last = _ends(runs)
    return recomputed.seconds[first, last, runs.holder].ravel()


def _play(problem: StageProblem, runs: _Runs) -> Floats:
    """Return the seconds of a step of each assignment; those with more stages come first."""
    (count, partitions), devices, micro_batches = runs.device.shape, problem.devices, problem.micro_batches
    table = _table(partitions, micro_batches, problem.schedule)
    each = np.arange(partitions)
    took = np.concatenate(
        [_of_stages(runs, one[each, runs.device]) for one in (problem.forward_s, problem.backward_s)], axis=1
    ).ravel()
    again = _again_s(problem, runs)
    seconds, readers = _messages(problem, runs)
    seconds = seconds.reshape(-1, devices)
    holder = np.tile(runs.holder, 2).ravel()
    rows = np.arange(count)
    first_device = rows * devices
    # Devices of readers, in an array of all; that of P is not looked at.
    holders = (first_device[:, None] + np.pad(runs.holder, ((0, 0), (0, 1)))).ravel()
    targets = holders[readers + rows.repeat(2 * partitions)[:, None] * (partitions + 1)]

    free = np.zeros(count * devices)
    # The forward pass that each device has done last, if nothing came after it.
    latest = np.full(count * devices, -1)
    links = np.zeros((count * devices, devices))
    ready = np.zeros(count * 2 * micro_batches * (partitions + 1))
    # Of every slot (row) and assignment; where an order is over, any pass will do.
    chunks = 2 * micro_batches * runs.stage_count
    slots = int(chunks.max(initial=0))
    running = np.searchsorted(-chunks, -np.arange(slots))
    passes = table.passes[:slots, runs.stage_count] % (2 * partitions)
    backward = passes >= partitions
    forward = passes - partitions * backward
    micro = table.micro[:slots, runs.stage_count]
    batch = ((rows * 2 + backward) * micro_batches + micro) * (partitions + 1)
    chunk = rows * (2 * partitions) + passes
    device = first_device + holder[chunk]
    worked = took[chunk]
    same = forward * micro_batches + micro
    for slot, active in enumerate(running.tolist()):
        now, at, of = chunk[slot, :active], device[slot, :active], batch[slot, :active]
        end = np.maximum(free[at], ready[of + forward[slot, :active]]) + worked[slot, :active]
        if again is not None:
            is_back, own = backward[slot, :active], same[slot, :active]
            stage = rows[:active] * partitions + forward[slot, :active]
            end += np.where(is_back & (latest[at] != own), again[stage], 0.0)
            latest[at] = np.where(is_back, -1, own)
        free[at] = end
        link = links[at]
        arrives = np.maximum(end[:, None], link) + seconds[now]
        links[at] = np.maximum(link, arrives)
        reading = of[:, None] + readers[now]
        ready[reading] = np.maximum(ready[reading], arrives.ravel()[targets[now]])
    final = np.zeros((count, devices))
    for p in range(partitions):
        final[rows, runs.device[:, p]] += problem.final_s[p, runs.device[:, p]]
    return (free.reshape(count, devices) + final).max(axis=1, initial=0.0)
