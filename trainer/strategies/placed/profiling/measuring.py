"""A profile of a network on all ranks: what `cingulum profile` keeps, and what planners divide by."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import keras

from trainer.planning import profile as form
from trainer.planning.placement.operations import Network
from trainer.planning.profile import Profile
from trainer.ranks.agreement import agree
from trainer.ranks.world import World
from trainer.run_folder import machine, record
from trainer.strategies.placed import calibration
from trainer.strategies.placed.profiling import handling, launching, links, operations, update
from trainer.strategies.placed.profiling.operations import Loss

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
    network: Network,
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
    took, task_s = update.measure(optimizer, model, compile), launching.measure()
    between = links.measure(world, link)
    handled = handling.measure(world)
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
