"""What a placement costs: bytes by cause, seconds of a step by the very task lists, and balance. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trainer.planning.hypergraph.traffic import CAUSES, Cause, is_halo
from trainer.planning.placement import costs
from trainer.planning.placement.exchanges import Redistribution
from trainer.planning.placement.listing import Pipeline, task_lists
from trainer.planning.placement.operations import OperationGraph
from trainer.planning.placement.units import Placement, place
from trainer.planning.placement.ways import Layouts
from trainer.planning.profile import Profile

# Layers that take less than this part of the time are in no balance of single layers.
NEGLIGIBLE = 1e-3
# Messages of more ranks of a replica are not listed: there are millions.
MOST_LISTED = 64


@dataclass(frozen=True)
class JudgedPlacement:
    """A placement, and what it costs.

    Attributes:
        label: what it is, for people.
        layouts: of all operations.
        bytes: that an update sends, by cause.
        step_s: seconds of an update.
        imbalance: how much longer the busiest rank computes than if all were done at once.
        layer_imbalance: the largest of any layer that takes more than `NEGLIGIBLE` of the time.
    """

    label: str
    layouts: Layouts
    bytes: Mapping[Cause, int]
    step_s: float
    imbalance: float
    layer_imbalance: float

    @property
    def volume(self) -> int:
        """Bytes of all causes."""
        return sum(self.bytes.values())


def judged(
    label: str,
    network: OperationGraph,
    layouts: Layouts,
    profile: Profile,
    ranks: int,
    pipeline: Callable[[Layouts], Pipeline | None] = lambda _: None,
) -> JudgedPlacement:
    """Divide a network, and play its task lists.

    Args:
        label: what the placement is.
        network: whose shapes hold the samples of a micro-batch.
        layouts: of its operations.
        profile: of the network, for `ranks` ranks or more.
        ranks: that train.
        pipeline: from layouts to the order in which stages work; see `task_lists`.

    Raises:
        ConfigError: the layouts do not divide the network.
    """
    placement, passing = place(network, layouts), pipeline(layouts)
    lists = task_lists(placement, passing)
    cost = costs.predict(placement, lists, profile, ranks)
    return JudgedPlacement(
        label,
        layouts,
        sent_bytes(placement, 1 if passing is None else passing.micro_batches),
        cost.step_s,
        *balance(placement, profile, ranks),
    )


def sent_bytes(placement: Placement, times: int = 1) -> dict[Cause, int]:
    """Return the bytes that cross in an update of `times` micro-batches, by cause."""
    by_cause = dict.fromkeys(CAUSES, 0)
    for name, flow in placement.flows.items():
        size = 2 * times * flow.width * sum(flow.elements_sent().values())
        halos = 0 if placement.network[name].sums else 2 * times * flow.width * _halos(flow)
        by_cause["halos"] += halos
        by_cause["statistics" if placement.network[name].sums else "activations"] += size - halos
    for flow in (*placement.reductions.values(), *placement.returns.values()):
        by_cause["weights"] += flow.width * sum(flow.elements_sent().values())
    return by_cause


def _halos(flow: Redistribution) -> int:
    """Elements that ranks receive which have the inside of what they read, and lack the border in space."""
    received: dict[int, int] = {}
    for (_, target), count in flow.elements_sent().items():
        received[target] = received.get(target, 0) + count
    return sum(count for rank, count in received.items() if is_halo(flow.need.of(rank), flow.have.of(rank)))


def balance(placement: Placement, profile: Profile, ranks: int) -> tuple[float, float]:
    """Return how far ranks are from all being done at once, max / mean - 1: all together, and of any layer.

    Args:
        placement: of a network.
        profile: of the network, for `ranks` ranks or more.
        ranks: that train.
    """
    operations = {one.name: one for one in placement.network.operations}
    samples = placement.network.operations[-1].shape[0]
    whole = {
        name: [
            profile.forward_s(name, rank, samples) + profile.backward_s(name, rank, samples)
            for rank in range(ranks)
        ]
        for name in operations
    }
    done = {name: [0.0] * ranks for name in operations}
    for unit in placement.units:
        name = unit.operation
        done[name][unit.rank] += costs.share(operations[name], unit) * whole[name][unit.rank]
    # If all ranks were done at once, in proportion to their speeds.
    ideal = {name: 1 / sum(1 / one for one in each) if min(each) > 0 else 0.0 for name, each in whole.items()}
    total = sum(ideal.values())
    if not total:
        return 0.0, 0.0
    together = max(sum(each[rank] for each in done.values()) for rank in range(ranks))
    layers = [max(done[name]) / best - 1 for name, best in ideal.items() if best > NEGLIGIBLE * total]
    return together / total - 1, max(layers, default=0.0)
