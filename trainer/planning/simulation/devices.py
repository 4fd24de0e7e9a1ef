"""Seconds of a network's operations on a cluster's devices: computed, or scaled from measured ones. Pure."""

from __future__ import annotations

import math

from trainer.errors import InputError
from trainer.planning.placement.operations import Operation, OperationGraph
from trainer.planning.profile import (
    Device,
    Made,
    Profile,
    ProfiledHandling,
    ProfiledLink,
    ProfiledOperation,
    ProfiledUpdate,
)
from trainer.planning.simulation.cluster import Cluster, DeviceSection
from trainer.planning.simulation.fabric import ClusterFabric

# Of a forward pass: the gradients of inputs and of weights take about as long each.
BACKWARD = 2.0
# Numbers that an update reads and writes for each parameter: weight, gradient, two slots, twice.
_UPDATE_MOVES = 8
# What FLOPs decide; the seconds of all other operations are those of moving their inputs and outputs.
COMPUTING = ("convolution", "transposed", "dense", "attention")


def computed(
    network: OperationGraph, fabric: ClusterFabric, *, name: str, precision: str = "float32"
) -> Profile:
    """Return a profile of a network on the first ranks of a cluster, from published figures of their devices.

    An operation takes `operation_s`, and as long as its FLOPs at the device's published rate times
    `efficiency`, or as reading its inputs and weights and writing its output at the memory's rate, whichever
    is longer (the roofline of Williams, Waterman and Patterson, 2009); backward twice that.

    Args:
        network: whose shapes hold the samples of a batch.
        fabric: of the ranks.
        name: of the network.
        precision: Keras' dtype policy.
    """
    samples = network.operations[-1].shape[0]
    devices = [fabric.device(rank) for rank in range(fabric.ranks)]
    half = "16" in precision
    operations = []
    for operation in network.operations:
        forward = tuple(_forward(operation, device, half=half) for device in devices)
        operations.append(
            ProfiledOperation(
                name=operation.name,
                kind=operation.kind,
                layer=operation.layer,
                measured=operation.name,
                flops=operation.flops,
                parameter_bytes=sum(weight.bytes for weight in operation.weights),
                output_bytes=math.prod(operation.shape) * operation.width,
                forward_s=forward,
                forward_spread_s=(0.0,) * len(devices),
                backward_s=tuple(BACKWARD * seconds for seconds in forward),
                backward_spread_s=(0.0,) * len(devices),
            )
        )
    parameters = network.parameters
    return Profile(
        version=Profile.VERSION,
        network=name,
        sample_shape=tuple(network.inputs[0].shape[1:]) or (1,),
        batch=samples,
        precision=precision,
        made=Made(time="", versions={"cluster": fabric.cluster.name}),
        devices=_named(fabric),
        operations=tuple(operations),
        update=ProfiledUpdate(
            parameters=parameters,
            seconds=tuple(
                4.0 * _UPDATE_MOVES * parameters / device.memory_bytes_per_second.value for device in devices
            ),
            spread_s=(0.0,) * len(devices),
        ),
        links=_links(fabric),
    )


def scaled(measured: Profile, fabric: ClusterFabric, *, measured_on: str | None = None) -> Profile:
    """Return a measured profile as it would be on the first ranks of a cluster.

    Seconds of convolutions and dense layers are divided by what the published FLOP/s are more there, those of
    all others, and of the update, by the memory's rate. The seconds of the profile's first rank count.

    Args:
        measured: of `cingulum profile`.
        fabric: of the ranks.
        measured_on: name of the device, of the cluster's `devices`, on which it was measured; default: each
            rank's own.

    Raises:
        InputError: the cluster has no such device.
    """
    ranks = range(fabric.ranks)
    base = None if measured_on is None else device_of(fabric.cluster, measured_on)
    half = "16" in measured.precision
    quicker = [(1.0, 1.0)] * fabric.ranks
    if base is not None:
        quicker = [
            (
                _peak(fabric.device(rank), half=half) / _peak(base, half=half),
                fabric.device(rank).memory_bytes_per_second.value / base.memory_bytes_per_second.value,
            )
            for rank in ranks
        ]

    def on_all(seconds: float, kind: str) -> tuple[float, ...]:
        return tuple(seconds / one[0 if kind in COMPUTING else 1] for one in quicker)

    operations = tuple(
        one.model_copy(
            update={
                key: on_all(getattr(one, key)[0], one.kind)
                for key in ("forward_s", "forward_spread_s", "backward_s", "backward_spread_s")
            }
        )
        for one in measured.operations
    )
    update, handling = measured.update, measured.handling
    return Profile(
        version=Profile.VERSION,
        network=measured.network,
        sample_shape=measured.sample_shape,
        batch=measured.batch,
        precision=measured.precision,
        made=measured.made,
        devices=_named(fabric),
        operations=operations,
        update=ProfiledUpdate(
            parameters=update.parameters,
            seconds=on_all(update.seconds[0], "update"),
            spread_s=on_all(update.spread_s[0], "update"),
        ),
        links=_links(fabric),
        task_s=measured.task_s and (measured.task_s[0],) * fabric.ranks,
        handling=handling
        and ProfiledHandling(
            message_s=(handling.message_s[0],) * fabric.ranks,
            byte_s=on_all(handling.byte_s[0], "handling"),
        ),
    )


def _forward(operation: Operation, device: DeviceSection, *, half: bool) -> float:
    if not operation.readings:
        return 0.0
    numbers = sum(math.prod(r.shape) for r in operation.readings) + math.prod(operation.shape)
    moved = operation.width * numbers + sum(weight.bytes for weight in operation.weights)
    moving = moved / device.memory_bytes_per_second.value
    computing = operation.flops / (_peak(device, half=half) * device.efficiency.value)
    return device.operation_s.value + (max(moving, computing) if operation.kind in COMPUTING else moving)


def _peak(device: DeviceSection, *, half: bool) -> float:
    best = device.half_flops_per_second if half else None
    return (best or device.flops_per_second).value


def device_of(cluster: Cluster, name: str) -> DeviceSection:
    """Return a device of a cluster file.

    Raises:
        InputError: there is none of this name.
    """
    if name not in cluster.devices:
        raise InputError(
            f"{cluster.name} has no device {name!r} among its `devices`.",
            cure=f"Name one of {', '.join(cluster.devices)}, or add the device that was measured.",
            key="devices",
        )
    return cluster.devices[name]


def _named(fabric: ClusterFabric) -> tuple[Device, ...]:
    return tuple(
        Device(host=f"host {fabric.host(rank)}", name=fabric.kind(rank).device, threads=1)
        for rank in range(fabric.ranks)
    )


def _links(fabric: ClusterFabric) -> tuple[tuple[ProfiledLink | None, ...], ...]:
    """Each way as if it were alone, for planners; the engine knows what ways share."""

    def link(source: int, target: int) -> ProfiledLink | None:
        if source == target:
            return None
        path = fabric.path(source, target)
        return ProfiledLink(
            latency_s=path.latency_s, bytes_per_second=min(map(fabric.capacity, path.resources))
        )

    ranks = range(fabric.ranks)
    return tuple(tuple(link(source, target) for target in ranks) for source in ranks)
