"""Which filters of each convolution a rank computes, from what its device and its link can do. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from trainer.planning.placement import shares
from trainer.planning.placement.operations import Operation, OperationGraph
from trainer.planning.placement.shares import FilterCost, Split
from trainer.planning.placement.ways import CONVOLUTIONS
from trainer.planning.profile import Device, Profile, ProfiledLink

By = Literal["speed", "bandwidth"]

# To divide anew must save more than this part of the convolutions' seconds. Two measurements of one device
# differ by a few per cent, with which a division must not go to and fro.
LEAST_SAVING = 0.1


class RankSpeeds(BaseModel):
    """What the ranks' devices and links can do.

    Attributes:
        devices: of each rank.
        seconds_per_gflop: of each rank, seconds of a convolution, forward and backward, for 1e9
            floating-point operations of its forward pass.
        links: between each rank and the first one of its replica; None of that one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)

    devices: tuple[Device, ...]
    seconds_per_gflop: tuple[Annotated[float, Field(gt=0)], ...]
    links: tuple[ProfiledLink | None, ...]

    @model_validator(mode="after")
    def _fits_together(self) -> RankSpeeds:
        if not len(self.devices) == len(self.seconds_per_gflop) == len(self.links):
            raise ValueError("devices, seconds_per_gflop and links must have one entry for each rank")
        return self

    @classmethod
    def of_profile(cls, profile: Profile, *, replicas: int = 1) -> RankSpeeds:
        """Return what a profile says of convolutions and of links to the first rank of each replica.

        Raises:
            ValueError: it has no convolution, or its ranks cannot be divided into `replicas` replicas.
        """
        convolutions = [one for one in profile.operations if one.kind in CONVOLUTIONS and one.flops]
        ranks = len(profile.devices)
        if not convolutions or ranks % replicas:
            raise ValueError("a profile needs a convolution, and a multiple of as many ranks as replicas")
        gflop = sum(one.flops for one in convolutions) / 1e9
        first = [rank - rank % (ranks // replicas) for rank in range(ranks)]
        return cls(
            devices=profile.devices,
            seconds_per_gflop=tuple(
                max(sum(one.forward_s[rank] + one.backward_s[rank] for one in convolutions) / gflop, 1e-12)
                for rank in range(ranks)
            ),
            links=tuple(profile.links[rank][first[rank]] for rank in range(ranks)),
        )

    def of_a_replica(self, replicas: int) -> RankSpeeds:
        """Return what holds for each place of a replica: the slowest device and link over all replicas."""
        ranks = len(self.devices) // replicas
        places = [range(place, ranks * replicas, ranks) for place in range(ranks)]
        return RankSpeeds(
            devices=self.devices[:ranks],
            seconds_per_gflop=tuple(max(self.seconds_per_gflop[rank] for rank in one) for one in places),
            links=tuple(_slowest([self.links[rank] for rank in one]) for one in places),
        )


def splits(network: OperationGraph, measured: RankSpeeds, by: By, *, master: bool) -> dict[str, Split]:
    """Return how many filters of each convolution each rank of a replica computes.

    Args:
        network: with the samples that one replica takes of a micro-batch.
        measured: of a replica.
        by: `speed`: in proportion to it; `bandwidth`: done first, messages included.
        master: see `ways.filters`.
    """
    by_operation = {}
    for operation in network.operations:
        if operation.kind in CONVOLUTIONS:
            filters = operation.shape[-1]
            if by == "speed":
                by_operation[operation.name] = shares.by_speed(filters, measured.seconds_per_gflop)
            else:
                by_operation[operation.name] = shares.fastest(
                    filters, costs(network, operation, measured, master=master)
                )
    return by_operation


def costs(
    network: OperationGraph, operation: Operation, measured: RankSpeeds, *, master: bool
) -> list[FilterCost]:
    """Return what filters of a convolution cost each rank.

    With a master, its own filters cross no link. To others go the input, and back its gradient; the output
    comes from them, and back goes its gradient. What the network takes is read by every rank, and does not
    cross. Without a master every rank receives the input from all others, and sends its filters' output to
    each of them; the master's link is as good as the best that leads to it.

    Args:
        network: that has the operation.
        operation: a convolution.
        measured: of a replica.
        master: see `ways.filters`.
    """
    filters, ranks = operation.shape[-1], len(measured.devices)
    reading = operation.readings[0]
    source = network[reading.tensor]
    input_bytes = math.prod(reading.shape) * source.width if source.readings else 0
    filter_bytes = math.prod(operation.shape) / filters * operation.width
    gflop = operation.flops / filters / 1e9
    links = list(measured.links)
    if not master:
        known = [link for link in links if link is not None]
        best = max(known, key=lambda link: link.bytes_per_second, default=None)
        links = [link or best for link in links]
    receivers = 1 if master else ranks - 1
    filter_costs = []
    for link, seconds in zip(links, measured.seconds_per_gflop, strict=True):
        if link is None:
            filter_costs.append(FilterCost(0.0, gflop * seconds, 0.0))
            continue
        messages = 4 if input_bytes else 2
        filter_costs.append(
            FilterCost(
                fixed_s=messages * link.latency_s + 2 * input_bytes / link.bytes_per_second,
                compute_s=gflop * seconds,
                link_s=2 * receivers * filter_bytes / link.bytes_per_second,
            )
        )
    return filter_costs


def slowest(
    network: OperationGraph, measured: RankSpeeds, divided: Mapping[str, Split], *, master: bool
) -> tuple[float, float]:
    """Return seconds of all convolutions of an update's micro-batch, and the imbalance of computing them.

    Args:
        network: see `splits`.
        measured: of a replica.
        divided: the split of each convolution.
        master: see `ways.filters`.

    Returns:
        The slowest rank's seconds, messages included, added up over convolutions; and the largest of the
        ranks' seconds of computing over their mean, minus 1.
    """
    total, computing = 0.0, [0.0] * len(measured.devices)
    for name, split in divided.items():
        each = costs(network, network[name], measured, master=master)
        total += shares.slowest(each, split)
        for rank, (cost, count) in enumerate(zip(each, split, strict=True)):
            computing[rank] += cost.compute_s * count
    mean = sum(computing) / len(computing)
    return total, max(computing) / mean - 1 if mean else 0.0


def is_worth_dividing(
    network: OperationGraph,
    measured: RankSpeeds,
    divided: Mapping[str, Split],
    by: By,
    *,
    master: bool,
    times: int,
    cost_s: float,
) -> bool:
    """Return whether another split of the convolutions saves more than `LEAST_SAVING`, and than it costs.

    Args:
        network: see `splits`.
        measured: of a replica, as it is now.
        divided: the split of each convolution so far.
        by: see `splits`.
        master: see `ways.filters`.
        times: micro-batches that are left to train, at least 1.
        cost_s: seconds that it takes to begin with another split.
    """
    anew = splits(network, measured, by, master=master)
    before, after = (slowest(network, measured, one, master=master)[0] for one in (divided, anew))
    return before - after > max(LEAST_SAVING * before, cost_s / times)


def _slowest(links: Sequence[ProfiledLink | None]) -> ProfiledLink | None:
    known = [link for link in links if link is not None]
    if not known:
        return None
    return ProfiledLink(
        latency_s=max(link.latency_s for link in known),
        bytes_per_second=min(link.bytes_per_second for link in known),
    )
