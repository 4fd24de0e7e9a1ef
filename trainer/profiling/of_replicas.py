"""What an update of many replicas costs, of what one of them does: they are alike."""

from __future__ import annotations

import dataclasses

from trainer.planning.hypergraph import replicas
from trainer.planning.placement import ways
from trainer.planning.placement.costs import Cost, Sent
from trainer.planning.placement.memory import Memory
from trainer.planning.placement.operations import Network
from trainer.planning.placement.plan_file import PlanFile, layouts_of
from trainer.planning.profile import Profile
from trainer.profiling.outlooks import Outlook


def outlook(
    one: Outlook, network: Network, count: int, *, times: int, slots: int, profile: Profile | None
) -> Outlook:
    """Return what all replicas cost: bytes and messages exactly, seconds as if the sums hid behind nothing.

    Args:
        one: replica's; its seconds are those of its own messages.
        network: whose samples are those of all replicas.
        count: replicas.
        times: micro-batches of an update, after each of which gradients are summed.
        slots: numbers that the optimizer keeps for each parameter.
        profile: by which `one` was predicted.
    """
    ranks = len(one.sent)
    alone, all_of_them = (replicas.summed(one.placement, ranks, number) for number in (1, count))
    owned = [int(size) for size in all_of_them.owned_bytes]
    where = [(rank, rank % ranks) for rank in range(count * ranks)]
    more = [int(all_of_them.sent[rank] - alone.sent[own]) for rank, own in where]
    messages = [int(all_of_them.messages[rank] - alone.messages[own]) for rank, own in where]
    received = [int(all_of_them.received[rank] - alone.received[own]) for rank, own in where]
    seconds = 0.0 if profile is None else times * replicas.between(max(more), profile, all_of_them.rounds)
    layouts = ways.copies(layouts_of(one.placement), network, count, ranks)
    return dataclasses.replace(
        one,
        way=f"{count} replicas of {ranks} ranks, one of which was planned; for sums over all of them "
        f"(gradients, statistics of batch norm) a rank sends at most {times * max(more) / 2**20:.3g} MiB "
        f"more. One replica: {one.way}",
        file=PlanFile.of_layouts(
            network,
            layouts,
            name=one.file.network,
            strategy=one.file.strategy,
            ranks=count * ranks,
            replicas=count,
        ),
        sent=tuple(
            Sent(one.sent[own].bytes + times * more[rank], one.sent[own].messages + times * messages[rank])
            for rank, own in where
        ),
        memory=tuple(_memory(one, own, owned[rank], slots, received[rank]) for rank, own in where),
        held=tuple(one.held[own] for _, own in where),
        owned=tuple(int(all_of_them.owned[rank]) for rank, _ in where),
        flops=tuple(one.flops[own] for _, own in where),
        cost=None if one.cost is None else _cost(one.cost, count, seconds),
    )


def _memory(one: Outlook, rank: int, owned: int, slots: int, received: int) -> Memory:
    """That of a replica's rank, which owns less, and has gradients of other replicas before the update."""
    before = one.memory[rank]
    widths = {w.path: w.width for of in one.placement.network.operations for w in of.weights}
    held = sum(width * one.placement.holders[path].elements(rank) for path, width in widths.items())
    return Memory(held + owned, slots * owned, before.kept, before.working + received)


def _cost(one: Cost, count: int, seconds: float) -> Cost:
    step, busy = one.step_s + seconds, count * one.busy_s
    return Cost(step, busy, tuple(step - each for each in busy))
