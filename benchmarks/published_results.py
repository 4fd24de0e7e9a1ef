#!/usr/bin/env python3
"""Predict published results from the published figures of their hardware, and write both side by side.

    .venv/bin/python benchmarks/published_results.py --page prediction.md

Nothing is fitted: where a figure was not published, the page says what was assumed instead.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import published_page

from trainer import atomic
from trainer.planning import exchange
from trainer.planning.communication import repeated, servers
from trainer.planning.placement import costs, ways
from trainer.planning.placement.costs import Durations
from trainer.planning.placement.listing import task_lists
from trainer.planning.placement.operations import OperationGraph
from trainer.planning.placement.units import place
from trainer.planning.simulation import cluster, collectives, devices, engine, epoch, stepping
from trainer.planning.simulation.cluster import Cluster
from trainer.planning.simulation.fabric import ClusterFabric
from trainer.planning.simulation.stepping import Work

# Of Horovod's and NVIDIA's trainings: gradients of this size leave together (HOROVOD_FUSION_THRESHOLD).
FUSION = 64 * 2**20


@dataclass(frozen=True)
class Trained:
    """A training by data parallelism that was published.

    Attributes:
        name: of the network.
        cluster: that stands for its hardware.
        ranks: of the published figure.
        batch: samples of a rank.
        alone: samples per second of one rank.
        alone_from: where that figure is from.
        parameters: trainable.
        measured: efficiency on all ranks.
        measured_from: where that is from.
    """

    name: str
    cluster: str
    ranks: int
    batch: int
    alone: float
    alone_from: str
    parameters: float
    measured: float
    measured_from: str


TENSORFLOW = "TensorFlow benchmarks, 2017 (P100, synthetic data)"
HOROVOD = "Horovod, 2018 (arXiv 1802.05799)"
NNUNET = "NVIDIA Deep Learning Examples, nnU-Net for TensorFlow 2, 2022 (DGX A100)"
TRAININGS = (
    Trained("Inception V3", "p100-ethernet", 512, 64, 142.0, TENSORFLOW, 23.8e6, 0.90, HOROVOD),
    Trained(
        "ResNet-101", "p100-ethernet", 512, 64, 124.0,
        f"estimated: between ResNet-50 (219) and ResNet-152 (91.8) by FLOPs; {TENSORFLOW}",
        44.5e6, 0.90, HOROVOD,
    ),
    Trained("VGG-16", "p100-ethernet", 512, 64, 154.0, TENSORFLOW, 138.4e6, 0.68, HOROVOD),
    *(
        Trained(
            f"3D nnU-Net, {precision}, batch {batch}", "dgx-a100", 8, batch, alone, NNUNET, 31.2e6,
            of_eight / 8 / alone, NNUNET,
        )
        for precision, batch, alone, of_eight in (
            ("mixed", 1, 27.02, 186.84), ("mixed", 2, 29.3, 219.34), ("mixed", 4, 31.87, 244.01),
            ("TF32", 1, 11.63, 91.11), ("TF32", 2, 11.81, 92.91), ("TF32", 4, 12.17, 96.52),
        )
    ),
)  # fmt: skip


def predicted(one: Trained) -> dict[str, float]:
    """Return efficiencies of a training: the estimate, its range, and that without slow ranks."""
    place_of = cluster.load(one.cluster)
    fabric = ClusterFabric(place_of, one.ranks)
    seconds = one.batch / one.alone
    work = Work(seconds / 3, 2 * seconds / 3)
    size = 4 * one.parameters
    parts = math.ceil(size / FUSION)
    exchanged = collectives.all_reduce("ring", fabric).of(size, parts)
    deviation = place_of.slowdown.value
    step = stepping.whole_network(work, exchanged, exchange.equal(parts), one.ranks, deviation)
    even = stepping.whole_network(work, exchanged, exchange.equal(parts), one.ranks, 0.0)
    slowest = seconds * epoch.slowest(one.ranks, deviation)
    waits = exchange.exposed(exchanged.seconds, 2 / 3 * slowest, parts)
    return {
        "efficiency": seconds / step.step_s,
        "no_slow_ranks": seconds / even.step_s,
        "hidden": seconds / (slowest + waits.at_least),
        "exposed": seconds / (slowest + waits.at_most),
        "exchange_s": exchanged.seconds,
        "compute_s": seconds,
        "parts": parts,
    }


def growth(ranks: Sequence[int]) -> list[tuple[int, float, float, float]]:
    """Return ranks, and seconds of ring, one server and a server on each rank, as multiples of M/B."""
    found = []
    for count in ranks:
        hosts = flat(1.0, 1.0)
        ring = collectives.all_reduce("ring", ClusterFabric(hosts, count)).transfer_s
        one = collectives.cost(repeated(servers([1.0], count)), ClusterFabric(hosts, count + 1)).transfer_s
        shares = [1.0 / count] * count
        each = servers(shares, count, colocated=True)
        found.append(
            (count, ring, one, collectives.cost(repeated(each), ClusterFabric(hosts, count)).transfer_s)
        )
    return found


def filters(bytes_per_flop: Sequence[float], devices_: int) -> list[tuple[float, float]]:
    """Return, for links of so many bytes per FLOP of a device, the speed-up of filters with a master.

    The network is 500:1500 on 32 x 32 images, devices are equal, and only FLOPs of convolutions and dense
    layers take time.
    """
    network = _conv2()
    layouts = ways.filters(network, dict.fromkeys(range(devices_), 1.0), master=True)
    placement = place(network, layouts)
    lists = task_lists(placement)
    found = []
    for ratio in bytes_per_flop:
        hosts = flat(1e9, ratio * 1e9)
        fabric = ClusterFabric(hosts, devices_)
        profile = devices.computed(network, fabric, name="conv2")
        seconds = Durations(placement, profile, dict(enumerate(costs.owned(placement, devices_)))).of
        played = engine.play(lists, seconds, fabric, devices_)
        found.append((ratio, profile.step_s(0) / played.step_s))
    return found


def crossing(points: Sequence[tuple[float, float]], wanted: float) -> float | None:
    """Return at which ratio a speed-up is reached, between points on a logarithmic scale; None if never."""
    for (low, less), (high, more) in itertools.pairwise(points):
        if less < wanted <= more:
            part = (wanted - less) / (more - less)
            return math.exp(math.log(low) + part * (math.log(high) - math.log(low)))
    return None


def _conv2() -> OperationGraph:
    from trainer.quiet import import_tensorflow

    import_tensorflow()
    from trainer import models
    from trainer.strategies.placed import reading

    return reading.read(models.build("conv2", (32, 32, 3), 10, width=500, second=1500), 64)


def flat(flops: float, rate: float, *, latency_s: float = 0.0, source: str = "a unit") -> Cluster:
    """Return hosts of one device of so many FLOP/s, links of a rate at one switch; all else takes no time."""

    def figure(value: float) -> dict[str, object]:
        return {"value": value, "source": source}

    link = {"latency_s": figure(latency_s), "bytes_per_second": figure(rate)}
    return Cluster.model_validate(
        {
            "name": "flat",
            "devices": {
                "device": {
                    "flops_per_second": figure(flops),
                    "efficiency": figure(1.0),
                    "memory_bytes_per_second": figure(1e30),
                    "operation_s": figure(0.0),
                    "memory_bytes": figure(1e30),
                    "busy_watts": figure(0.0),
                    "idle_watts": figure(0.0),
                }
            },
            "hosts": [
                {
                    "device": "device",
                    "inside": {"kind": "pairs", **link},
                    "interface": link,
                    "watts": figure(0.0),
                }
            ],
            "storage": {"read_bytes_per_second": figure(1e30), "write_bytes_per_second": figure(1e30)},
            "failures": {"hours_between": figure(1e30), "restart_s": figure(0.0)},
            "slowdown": figure(0.0),
        }
    )


def main() -> int:
    """Print the page, or write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--page", type=Path, help="write the page, in Markdown")
    page = parser.parse_args().page
    from trainer.quiet import import_tensorflow

    import_tensorflow()
    import published_series  # Keras comes with it

    ratios = [2.0**power / 1e3 for power in range(-6, 8)]
    text = published_page.page(
        [(one, predicted(one)) for one in TRAININGS],
        growth([2, 4, 8, 16, 64, 512]),
        {count: filters(ratios, count) for count in (3, 4)},
        crossing,
        [(one, *published_series.predicted(one)) for one in published_series.SERIES],
    )
    if page is None:
        print(text)
    else:
        atomic.write_text(page, text.rstrip("\n") + published_page.held_out(page))
    return 0


if __name__ == "__main__":
    sys.exit(main())
