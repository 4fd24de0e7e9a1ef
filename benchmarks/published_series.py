"""Published trainings at several sizes: calibrated on the smallest system, the others predicted.

Samples per second are medians of the submitters' runs, of each the median of what its log tracks but the
first: `results/*/unet3d` of mlcommons/training_results_v4.0, `results/*/cosmoflow` of
mlcommons/hpc_results_v3.0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras

from trainer.forecast import groups
from trainer.forecast.outlooks import StrategyOutlook
from trainer.planning import exchange
from trainer.planning.placement import costs, ways
from trainer.planning.placement.layouts import replicated
from trainer.planning.placement.listing import task_lists
from trainer.planning.placement.operations import OperationGraph
from trainer.planning.placement.plan_file import PlanFile
from trainer.planning.placement.units import place
from trainer.planning.simulation import cluster, collectives, devices, stepping
from trainer.planning.simulation.cluster import Cluster, SourcedFigure
from trainer.planning.simulation.collectives import Direct
from trainer.planning.simulation.fabric import ClusterFabric
from trainer.planning.simulation.stepping import Work
from trainer.strategies.placed import reading

PRECISION = "mixed_float16"
# Horovod's and PyTorch's buffers of gradients, in bytes.
BUFFER = 64 * 2**20
# Maps of fewer slices are not cut.
SMALLEST_SLABS = 32
# Kernels are launched by CUDA graphs, and reach the same part of each device's peak.
OPERATION_S, EFFICIENCY = 5e-6, 0.1
H100_MEMORY = SourcedFigure(value=3350e9, source="NVIDIA H100 Tensor Core GPU datasheet, 2023: SXM5, HBM3")


@dataclass(frozen=True)
class System:
    """A system that a training was measured on.

    Attributes:
        name: for people, with the submitter.
        devices: file of the cluster that stands for it.
        h100: whether its devices are H100 in the hosts of `dgx-h200`.
        ranks: that train.
        batch: samples of a rank; of a group, where `group` is above 1.
        measured: samples per second.
        group: ranks that divide each volume in space between them.
    """

    name: str
    devices: str
    ranks: int
    batch: int
    measured: float
    h100: bool = False
    group: int = 1


@dataclass(frozen=True)
class Series:
    """One network on several systems; the first one calibrates.

    Attributes:
        name: for people.
        network: builds it.
        systems: smallest first.
    """

    name: str
    network: Callable[[], keras.Model]
    systems: tuple[System, ...]


@dataclass(frozen=True)
class Predicted:
    """What is predicted of a system; `rate` in samples per second, seconds of a step."""

    system: System
    rate: float
    step_s: float
    computing_s: float


def unet() -> keras.Model:
    """The 3D U-Net of MLPerf Training: five levels of 32 to 320 channels, instance norm, 128^3, 3 classes."""
    layers = keras.layers
    widths = (32, 64, 128, 256, 320, 320)

    def pair(x: Any, channels: int, strides: int, name: str) -> Any:
        for number, step in enumerate((strides, 1)):
            part = f"{name}_{number}"
            x = layers.Conv3D(channels, 3, strides=step, padding="same", use_bias=False, name=f"{part}_conv")(
                x
            )
            x = layers.GroupNormalization(channels, name=f"{part}_norm")(x)
            x = layers.Activation("relu", name=f"{part}_relu")(x)
        return x

    volume = keras.Input((128, 128, 128, 1), name="volume")
    levels = [pair(volume, widths[0], 1, "level0")]
    for level, channels in enumerate(widths[1:], start=1):
        levels.append(pair(levels[-1], channels, 2, f"level{level}"))
    x = levels.pop()
    for level, beside in reversed(list(enumerate(levels))):
        x = layers.Conv3DTranspose(widths[level], 2, strides=2, name=f"up{level}_grow")(x)
        x = layers.Concatenate(name=f"up{level}_joined")([x, beside])
        x = pair(x, widths[level], 1, f"up{level}")
    logits = layers.Conv3D(3, 1, dtype="float32", name="logits")(x)
    return keras.Model(volume, logits, name="mlperf_unet3d")


def cosmoflow() -> keras.Model:
    """CosmoFlow of MLPerf HPC: five convolutions of 32 to 512 channels, each halved, of 128^3 x 4."""
    layers = keras.layers
    x = volume = keras.Input((128, 128, 128, 4), name="volume")
    for level in range(5):
        x = layers.Conv3D(32 * 2**level, 3, padding="same", name=f"conv{level}")(x)
        x = layers.LeakyReLU(0.3, name=f"leaky{level}")(x)
        x = layers.MaxPooling3D(2, name=f"half{level}")(x)
    x = layers.Flatten(name="flat")(x)
    for number, width in enumerate((128, 64)):
        x = layers.Dense(width, name=f"dense{number}")(x)
        x = layers.LeakyReLU(0.3, name=f"dense{number}_leaky")(x)
        x = layers.Dropout(0.5, name=f"dense{number}_drop")(x)
    return keras.Model(volume, layers.Dense(4, dtype="float32", name="out")(x), name="cosmoflow")


SERIES = (
    Series(
        "MLPerf Training v4.0, 3D U-Net",
        unet,
        (
            System("4 H100, batch 7 each (Fujitsu)", "dgx-h200", 4, 7, 289.1, h100=True),
            System("8 H100, batch 7 each (NVIDIA)", "dgx-h200", 8, 7, 578.5, h100=True),
            System("8 H200, batch 7 each (NVIDIA)", "dgx-h200", 8, 7, 608.2),
            System("56 H100, batch 1 each (NVIDIA)", "dgx-h200", 56, 1, 3519.5, h100=True),
            System("672 H100, groups of 8 (NVIDIA)", "dgx-h200", 672, 1, 10942.3, h100=True, group=8),
        ),
    ),
    Series(
        "MLPerf HPC v3.0, CosmoFlow",
        cosmoflow,
        (
            System("32 H100, batch 1 each (NVIDIA)", "dgx-h200", 32, 1, 7158.0, h100=True),
            System("512 H100, batch 1 each (NVIDIA)", "dgx-h200", 512, 1, 105727.8, h100=True),
            System("512 A100, batch 1 each (HPE and LBNL)", "dragonfly-a100", 512, 1, 46498.6),
        ),
    ),
)


def predicted(series: Series) -> tuple[float, list[Predicted]]:
    """Return by what the published figures of devices are multiplied, and what follows for every system."""
    keras.config.set_dtype_policy(PRECISION)
    model = series.network()
    smallest = series.systems[0]
    low, high = 1 / 64, 64.0
    for _ in range(60):  # the rate grows with the factor
        middle = math.sqrt(low * high)
        if _predicted(model, smallest, middle).rate < smallest.measured:
            low = middle
        else:
            high = middle
    factor = math.sqrt(low * high)
    return factor, [_predicted(model, one, factor) for one in series.systems]


def _predicted(model: keras.Model, system: System, factor: float) -> Predicted:
    place_of = _calibrated(system, factor)
    fabric = ClusterFabric(place_of, system.ranks)
    network = reading.read(model, system.batch)
    if system.group > 1:
        step_s, busy_s = _in_groups(network, system, place_of, fabric)
    else:
        step_s, busy_s = _by_data(network, place_of, fabric)
    samples = system.batch * system.ranks // system.group
    return Predicted(system, samples / step_s, step_s, busy_s)


def _by_data(network: OperationGraph, place_of: Cluster, fabric: ClusterFabric) -> tuple[float, float]:
    """Seconds of a step of data parallelism, and of its computing."""
    profile = devices.computed(network, ClusterFabric(place_of, 1), name="published", precision=PRECISION)
    work = Work(
        math.fsum(one.forward_s[0] for one in profile.operations),
        math.fsum(one.backward_s[0] for one in profile.operations),
        profile.update.seconds[0],
    )
    size = 4.0 * network.parameters
    parts = math.ceil(size / BUFFER)
    exchanged = collectives.all_reduce("by-host", fabric).of(size, parts)
    step = stepping.whole_network(
        work, exchanged, exchange.equal(parts), fabric.ranks, place_of.slowdown.value
    )
    return step.step_s, step.busy_s


def _in_groups(
    network: OperationGraph, system: System, place_of: Cluster, fabric: ClusterFabric
) -> tuple[float, float]:
    """Seconds of a step of groups that divide each volume in space as MLPerf's do, and of a rank's computing.

    Maps of 32^3 and more are cut into slabs. What is smaller each of their ranks computes whole: here the
    first one does, while the others wait, which takes as long.
    """
    size = system.group
    layouts = ways.spatial(network, (size, 1, 1), range(size))
    for one in network.operations:
        shape = ways.placed_shape(one) if one.readings else ()
        if len(shape) == 5 and shape[1] < SMALLEST_SLABS:
            layouts[one.name] = replicated(shape, [0])
    placement = place(network, layouts)
    profile = devices.computed(network, ClusterFabric(place_of, size), name="published", precision=PRECISION)
    file = PlanFile.of(placement, name="published", strategy="spatial", ranks=size, replicas=1)
    owned = costs.owned(placement, size)
    rounds = ((task_lists(placement), 1),)
    outlook = StrategyOutlook("spatial", "slabs", file, placement, (), (), (), owned, (), rounds, None)
    group = groups.play(
        outlook,
        profile,
        fabric,
        deviation=place_of.slowdown.value,
        least_s=fabric.device(0).operation_s.value,
    )
    step, _ = groups.together(group, outlook, fabric, Direct(size, system.ranks // size, fabric))
    return step.step_s, step.busy_s


def _calibrated(system: System, factor: float) -> Cluster:
    """The cluster of a system, its devices by a factor faster than published figures and assumptions say."""
    found = cluster.load(system.devices)

    def times(one: SourcedFigure, by: float) -> SourcedFigure:
        return one.model_copy(update={"value": one.value * by})

    changed = {}
    for name, device in found.devices.items():
        memory = H100_MEMORY if system.h100 else device.memory_bytes_per_second
        changed[name] = device.model_copy(
            update={
                "efficiency": times(device.efficiency, factor * EFFICIENCY / device.efficiency.value),
                "memory_bytes_per_second": times(memory, factor),
                "operation_s": times(device.operation_s, OPERATION_S / device.operation_s.value / factor),
            }
        )
    return found.model_copy(update={"devices": changed})
