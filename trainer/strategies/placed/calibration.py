"""Times a sample convolution on every rank's device, and each rank's link to the first one of its replica."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.planning import links
from trainer.planning.links import HostLink, Timed
from trainer.planning.placement.balance import RankSpeeds
from trainer.planning.placement.operations import OperationGraph
from trainer.planning.profile import Device, ProfiledLink
from trainer.ranks.members import MESSAGES
from trainer.ranks.messages import Mailbox
from trainer.ranks.world import World
from trainer.run_folder import machine
from trainer.telemetry.link_probe import SIZES, expected

# One convolution, both passes, should take so long at least: it has fewer samples and filters than it may.
CALL_S = 0.01
# A share of a processor (a cgroup's quota) is given in slices of each 0.1 s: only several of these tell it.
WINDOW_S = 0.2
WINDOWS = 3
LEAST_FILTERS = 8


@dataclass(frozen=True)
class Sample:
    """A convolution.

    Attributes:
        space: of its input, one to three axes.
        channels: of its input.
        kernel: as many axes as `space`.
        filters: at most.
        samples: at most.
        strides: as many axes as `space`.
        padding: 'VALID' or 'SAME'.
        dtype: that it computes in.
        gflop: of the forward pass, for one filter and one sample.
    """

    space: tuple[int, ...]
    channels: int
    kernel: tuple[int, ...]
    filters: int
    samples: int
    strides: tuple[int, ...]
    padding: str
    dtype: str
    gflop: float


# Marques et al. (arXiv 1712.02546): 32x32x3 images, kernels of 5x5, valid.
PUBLISHED = Sample((32, 32), 3, (5, 5), 500, 64, (1, 1), "VALID", "float32", 2 * 28 * 28 * 75 / 1e9)


def sample_of(network: OperationGraph, model: Any) -> Sample:
    """Return the convolution of a network that has most to compute; a published one where there is none."""
    found = [one for one in network.operations if one.kind == "convolution"]
    if not found:
        return PUBLISHED
    largest = max(found, key=lambda one: one.flops)
    layer = model.get_layer(largest.layer)
    *_, channels, filters = layer.kernel.shape  # of groups, channels are those of one
    return Sample(
        largest.readings[0].shape[1:-1],
        int(channels),
        tuple(layer.kernel_size),
        int(filters),
        largest.shape[0],
        tuple(layer.strides),
        layer.padding.upper(),
        layer.compute_dtype,
        largest.flops / largest.shape[0] / filters / 1e9,
    )


def measure(world: World, sample: Sample, devices: tuple[Device, ...], *, replicas: int) -> RankSpeeds:
    """Measure all devices at once, as they compute in a step, and then all links at once; a collective.

    It takes about a second. Neither weights nor random numbers are touched.

    Args:
        world: started with `Members(messages=True)`, or of one rank.
        sample: of `sample_of`.
        devices: of all ranks.
        replicas: of the network, of equally many ranks.
    """
    seconds = seconds_per_gflop(world, sample)
    link = _link(world, replicas)
    links_ = world.allgather_object(link and link._asdict())
    return RankSpeeds(
        devices=devices,
        seconds_per_gflop=seconds,
        links=tuple(ProfiledLink(**one) if one else None for one in links_),
    )


def seconds_per_gflop(world: World, sample: Sample) -> tuple[float, ...]:
    """Measure all devices at once, as they compute in a step; see `RankSpeeds`. A collective."""
    step = _step(sample)
    samples, filters = _size(step, sample)
    world.barrier()
    seconds = _seconds(lambda: step(samples, filters)) / (sample.gflop * samples * filters)
    return tuple(world.allgather_object(seconds))


def devices(world: World) -> tuple[Device, ...]:
    """Return what each rank computes on; a collective."""
    return tuple(Device(**one) for one in world.allgather_object({"host": world.host, **device()}))


def device() -> dict[str, Any]:
    """Return the name of the GPU or processor that this rank computes on, and its compute threads."""
    gpus = tf.config.get_visible_devices("GPU")
    threads = tf.config.threading.get_intra_op_parallelism_threads() or len(os.sched_getaffinity(0))
    if not gpus:
        return {"name": machine.described()["cpu"]["model"], "threads": threads}
    details = tf.config.experimental.get_device_details(gpus[0])
    return {"name": str(details.get("device_name", "GPU")), "threads": threads}


# Computes both passes of a convolution of so many samples and filters; returns when it is done.
Step = Callable[[int, int], None]


def _step(sample: Sample) -> Step:
    axes = [None] * (len(sample.space) + 2)
    spec = tf.TensorSpec(axes, sample.dtype)

    @tf.function(input_signature=[spec, spec], autograph=False, jit_compile=False)
    def both(x: Any, kernel: Any) -> Any:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([x, kernel])
            y = tf.nn.convolution(x, kernel, strides=sample.strides, padding=sample.padding)
        found = tape.gradient(y, [x, kernel], output_gradients=y)
        # The graph's optimizer removes what no result depends on: take a number of each.
        return tf.add_n([tf.reshape(one, [-1])[0] for one in (y, *found)])

    tensors: dict[tuple[int, int], tuple[Any, Any]] = {}

    def step(samples: int, filters: int) -> None:
        if (samples, filters) not in tensors:
            tensors.clear()
            tensors[samples, filters] = (
                tf.fill((samples, *sample.space, sample.channels), tf.constant(0.5, sample.dtype)),
                tf.fill((*sample.kernel, sample.channels, filters), tf.constant(1e-3, sample.dtype)),
            )
        both(*tensors[samples, filters]).numpy()

    return step


def _size(step: Step, sample: Sample) -> tuple[int, int]:
    """Return samples and filters of which a call takes long enough to be timed."""
    samples, filters = 1, min(LEAST_FILTERS, sample.filters)
    while True:
        step(samples, filters)  # the first call of a size lays out memory
        if min(_timed(step, samples, filters) for _ in range(3)) >= CALL_S:
            return samples, filters
        if samples < sample.samples:
            samples = min(2 * samples, sample.samples)
        elif filters < sample.filters:
            filters = min(2 * filters, sample.filters)
        else:
            return samples, filters


def _seconds(work: Callable[[], None]) -> float:
    """Return seconds of a call: the median of some windows, in each of which it is called again and again."""
    seconds = []
    for _ in range(WINDOWS):
        calls, began = 0, time.perf_counter()
        while (spent := time.perf_counter() - began) < WINDOW_S:
            work()
            calls += 1
        seconds.append(spent / calls)
    return statistics.median(seconds)


def _timed(step: Step, samples: int, filters: int) -> float:
    began = time.perf_counter()
    step(samples, filters)
    return time.perf_counter() - began


def _link(world: World, replicas: int) -> HostLink | None:
    """Time this rank's link to the first one of its replica while all others do, too; None of that one."""
    ranks = world.size // replicas
    if world.links is None or ranks == 1:
        return None
    master = world.rank - world.rank % ranks
    scratch: dict[int, np.ndarray] = {}

    def buffer(source: int, tag: int, size: int) -> np.ndarray:
        if size > scratch.get(source, np.empty(0)).size:
            scratch[source] = np.empty(size, np.uint8)
        return scratch[source][:size]

    mailbox = world.links.mailbox(MESSAGES, buffer=buffer)
    try:
        world.barrier()
        if world.rank == master:
            answer_messages(mailbox, ranks - 1)
            return None
        return links.of_round_trips(time_messages(mailbox, world.links.workers[master]))
    finally:
        world.barrier()
        mailbox.close()


# Times messages from one rank to another: each is answered with next to nothing.


REPEATS = 7
# A further size is left out where its repeats would take longer than this at the rate seen so far.
MOST_S = 0.3
_LOAD, _ANSWER, _END = 1, 2, 3


def time_messages(mailbox: Mailbox, process: int) -> list[Timed]:
    """Return seconds of messages of each size until their answer; the first of a size is dropped.

    Args:
        mailbox: of this rank, in which nothing else arrives meanwhile.
        process: that answers.
    """
    load = np.zeros(max(SIZES), np.uint8)
    timed: list[Timed] = []
    for size in SIZES:
        if (REPEATS + 1) * expected(timed, size) > MOST_S:
            break
        took = []
        for _ in range(REPEATS + 1):
            began = time.perf_counter()
            mailbox.send(process, _LOAD, load[:size])
            mailbox.wait()
            took.append(time.perf_counter() - began)
        timed.append(Timed(size, statistics.median(took[1:])))
    mailbox.send(process, _END, load[:1])
    return timed


def answer_messages(mailbox: Mailbox, processes: int = 1) -> None:
    """Answer `processes` processes until all of them have measured."""
    answer = np.zeros(1, np.uint8)
    while processes:
        message = mailbox.wait()
        if message.tag == _END:
            processes -= 1
        else:
            mailbox.send(message.source, _ANSWER, answer)
