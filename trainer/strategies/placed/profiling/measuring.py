"""A profile of a network on all ranks: what `cingulum profile` keeps, and what planners divide by."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from trainer.planning import profile as form
from trainer.planning.placement.operations import OperationGraph
from trainer.planning.profile import Profile, ProfiledHandling
from trainer.ranks.agreement import agree
from trainer.ranks.exchange import Compiled, Parcel, open_exchange
from trainer.ranks.world import World
from trainer.run_folder import machine, record
from trainer.strategies import compiled_update
from trainer.strategies.compiled_update import Updated
from trainer.strategies.placed import calibration
from trainer.strategies.placed.profiling import launching, links, operations, timing
from trainer.strategies.placed.profiling.operations import Loss
from trainer.strategies.placed.profiling.timing import Spread, Stopwatch

# Takes how many of how many are done.
Show = Callable[[int, int], None]


class About(NamedTuple):
    """What a profile is of: see `Profile`."""

    network: str
    sample_shape: tuple[int, ...]
    batch: int
    precision: str


def measure(
    world: World,
    about: About,
    network: OperationGraph,
    model: keras.Model,
    optimizer: keras.Optimizer,
    loss: Loss,
    *,
    compile: str,
    operation: Show,
    link: Show,
) -> Profile:
    """Measure a network on all ranks, each on its own device at the same time; a collective.

    Args:
        world: started with `Members(messages=True)`, or of one rank.
        about: the network.
        network: `reading.read` of the model, with `about.batch` samples.
        model: whose weights may change.
        optimizer: of the model.
        loss: of the network's outputs.
        compile: `train.compile`.
        operation: is told how many of how many operations are done.
        link: is told how many of how many pairs of ranks are done.

    Raises:
        Agreed: a device has no memory for the batch.
    """
    world.barrier()
    costs = agree(world, lambda: operations.measure(network, model, loss, operation))
    sizes = operations.parameter_bytes(network, model)
    took, task_s = measured_update(optimizer, model, compile), launching.measure()
    between = links.measure(world, link)
    handled = measured_handling(world)
    everyones = world.allgather_object(
        {
            "device": {"host": world.host, **calibration.device()},
            "forward": [costs[one.name].forward for one in network.operations],
            "backward": [costs[one.name].backward for one in network.operations],
            "update": took,
            "task": task_s,
        }
    )
    return Profile(
        version=form.VERSION,
        network=about.network,
        sample_shape=about.sample_shape,
        batch=about.batch,
        precision=about.precision,
        made=_made(),
        devices=tuple(form.Device(**one["device"]) for one in everyones),
        operations=tuple(
            form.ProfiledOperation(
                name=one.name,
                kind=one.kind,
                layer=one.layer,
                measured=costs[one.name].measured,
                flops=one.flops,
                parameter_bytes=sizes[one.name],
                output_bytes=costs[one.name].output_bytes,
                forward_s=tuple(each["forward"][number][0] for each in everyones),
                forward_spread_s=tuple(each["forward"][number][1] for each in everyones),
                backward_s=tuple(each["backward"][number][0] for each in everyones),
                backward_spread_s=tuple(each["backward"][number][1] for each in everyones),
            )
            for number, one in enumerate(network.operations)
        ),
        update=form.ProfiledUpdate(
            parameters=network.parameters,
            seconds=tuple(one["update"][0] for one in everyones),
            spread_s=tuple(one["update"][1] for one in everyones),
        ),
        links=tuple(tuple(one and form.ProfiledLink(**one._asdict()) for one in row) for row in between),
        handling=handled,
        task_s=tuple(one["task"] for one in everyones),
    )


def _made() -> form.Made:
    about = machine.described()
    versions = {"cingulum": about["cingulum"] or "unknown", "python": about["python"], **about["packages"]}
    return form.Made(time=record.now(), versions=versions)


# Seconds of the optimizer's update of all weights on this rank's device, compiled where a run would be.


def measured_update(optimizer: keras.Optimizer, model: keras.Model, compile: str = "auto") -> Spread:
    """Time the optimizer's step, with gradients of zeros; the model's weights may change.

    Args:
        optimizer: of one rank; from now on its update is compiled if that is faster.
        model: with trainable variables.
        compile: `train.compile`.
    """
    variables = model.trainable_variables
    if not variables:
        return Spread(0.0, 0.0)
    optimizer.build(variables)
    compiled_update.choose(compile, Updated((optimizer,), tuple(variables)), World())

    @tf.function(autograph=False, jit_compile=False)
    def update(*gradients: Any) -> Any:
        optimizer.apply(list(gradients), variables)
        return tf.convert_to_tensor(optimizer.iterations)

    def times(count: int, gradients: Sequence[Any]) -> object:
        # Not in a loop within the graph: a Keras optimizer cannot be applied in there.
        return [update(*gradients) for _ in range(count)][-1].numpy()

    watch = Stopwatch([times], lambda: [tf.zeros(one.shape, one.dtype) for one in variables])
    for _ in range(timing.ROUNDS):
        watch.round()
    return timing.spread([one for (one,) in watch.found])


# What a rank does itself for the messages that it sends and receives: joining and cutting boxes, and calls.
#
# Every rank sends to the next one, and receives from the one before; both are timed apart, and what is
# received is there by then. So the seconds of links are not in it.


# Elements of float32 of a message, and how many of that size travel in a round.
SIZES = ((1024, 16), (2**19, 4))
ROUNDS = 7
# A message that has not come by then is waited for, and its round says more of the link.
_MOST_S = 5.0
_TAG = 1


def measured_handling(world: World) -> ProfiledHandling | None:
    """Return what messages cost all ranks; a collective.

    Args:
        world: started with `Members(messages=True)`, or of one rank.

    Returns:
        None on one rank, and where messages go through Python, which waits and handles at once.
    """
    if world.links is None or world.size == 1:
        return None
    exchange = open_exchange(world)
    try:
        if not isinstance(exchange, Compiled):
            return None
        small, large = (_seconds(world, exchange, size, count) for size, count in SIZES)
    finally:
        world.barrier()
        exchange.close()
    byte_s = max(0.0, large - small) / (4 * (SIZES[1][0] - SIZES[0][0]))
    everyones = world.allgather_object((max(0.0, small - 4 * SIZES[0][0] * byte_s), byte_s))
    message_s, each = zip(*everyones, strict=True)
    return ProfiledHandling(message_s=message_s, byte_s=each)


def _seconds(world: World, exchange: Compiled, size: int, count: int) -> float:
    """Return seconds of sending or receiving a message of `size` numbers: the median of some rounds."""
    before, after = ((world.rank + step) % world.size for step in (-1, 1))
    leaving, coming = (Parcel(rank, _TAG, size, tf.float32) for rank in (after, before))
    halves = [tf.zeros(size // 2), tf.zeros(size // 2)]

    @tf.function(autograph=False)
    def send() -> Any:
        last: list[Any] = []
        for _ in range(count):
            with tf.control_dependencies(last):
                last = [exchange.move([tf.concat(halves, 0)], [leaving], [])[1]]
        with tf.control_dependencies(last):
            return tf.zeros(())

    @tf.function(autograph=False)
    def receive() -> Any:
        last: list[Any] = []
        for _ in range(count):
            with tf.control_dependencies(last):
                (found,), done = exchange.move([], [], [coming])
            last = [done, *tf.split(found, 2)]
        with tf.control_dependencies(last):
            return tf.zeros(())

    took = []
    for _ in range(1 + ROUNDS):
        took.append(_timed(send))
        limit = time.perf_counter() + _MOST_S
        while exchange.early() < 4 * size * count and time.perf_counter() < limit:
            time.sleep(1e-3)
        took.append(_timed(receive))
        world.barrier()
    return statistics.median(_pairs(took[2:])) / count


def _pairs(took: Sequence[float]) -> list[float]:
    """Return the mean of sending and receiving, by round."""
    return [(one + other) / 2 for one, other in zip(took[::2], took[1::2], strict=True)]


def _timed(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call().numpy()
    return time.perf_counter() - began
