"""Estimated memory of each rank in an update: what its tasks allocate, and how long it lives. Pure.

Counted: blocks of variables, what a rank owns beside them, the optimizer's slots; outputs, received boxes and
what is put together of them, from their making to their last use, backwards too; gradients of activations
until they are used, of weights until the update; copies with a border, and the largest temporaries of
operations; where micro-batches follow each other, messages that may come before they are asked for. Not
counted: what a convolution rearranges while it computes, batches that are read ahead, TensorFlow itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.planning.placement.lives import Lives
from trainer.planning.placement.tasks import Compute, Message, Receive, Send, TaskLists
from trainer.planning.placement.units import Placement


@dataclass(frozen=True)
class Memory:
    """Bytes on one rank.

    Attributes:
        variables: blocks that it computes with, and those that it owns where they are others.
        slots: the optimizer's state.
        kept: activations, and the batch, that are there when the forward pass is done.
        working: activations, received boxes, gradients and temporaries, where the sum of all is largest.
        early: of messages that may be there, besides what is kept, before they are asked for.
    """

    variables: int
    slots: int
    kept: int
    working: int
    early: int = 0

    @property
    def total(self) -> int:
        """Bytes of all where they are most."""
        return self.variables + self.slots + self.working + self.early


def memory(
    placement: Placement, lists: TaskLists, ranks: int, *, slots: int, whole_update: bool = False
) -> tuple[Memory, ...]:
    """Estimate the memory of each rank; see the top of this file.

    Args:
        placement: of a network.
        lists: the tasks of every rank.
        ranks: that train.
        slots: numbers that the optimizer keeps for each parameter, such as 2 of Adam.
        whole_update: every rank updates all that it holds, as under `data`, and not only what it owns.
    """
    widths = {w.path: w.width for one in placement.network.operations for w in one.weights}

    def one(rank: int) -> Memory:
        held = {(path, box) for path, of in placement.holders.items() for box in of.of(rank)}
        trained = {key for key in held if key[0] in placement.reductions}
        own = {(path, box) for path, flow in placement.reductions.items() for box in flow.need.of(rank)}
        kept = trained if whole_update else own
        tasks = lists.get(rank, ())
        lives, early_bytes = Lives(placement, tasks, rank), 0
        if any(isinstance(task, Compute) and task.micro for task in tasks):
            early_bytes = lives.kept_with(early(lists, rank)) - lives.kept
        return Memory(
            sum(box.size * widths[path] for path, box in held | kept),
            slots * sum(box.size * widths[path] for path, box in kept),
            lives.kept,
            lives.most,
            early_bytes,
        )

    return tuple(one(rank) for rank in range(ranks))


Bundle = tuple[Message, ...]


def early(lists: TaskLists, rank: int) -> dict[Bundle, int]:
    """Return for each bundle that a rank receives the number of its own task at which it may be there.

    Sending waits for nobody, and what is sent travels while its receiver computes. How far the others can be
    ahead of a rank follows from the task lists: they stop where they need what it has not sent yet.

    Args:
        lists: of all ranks; they can be carried out.
        rank: whose.
    """
    position = {other: 0 for other in lists if other != rank}
    sent: set[Bundle] = set()
    arrivals: dict[Bundle, int] = {}

    def let_others_go_on(now: int) -> None:
        moving = True
        while moving:
            moving = False
            for other, at in position.items():
                for task in lists[other][at:]:
                    if isinstance(task, Receive) and task.messages not in sent:
                        break
                    if isinstance(task, Send):
                        sent.add(task.messages)
                        if task.messages[0].target == rank:
                            arrivals[task.messages] = now
                    position[other] += 1
                    moving = True

    let_others_go_on(0)
    for now, task in enumerate(lists[rank]):
        if isinstance(task, Send):
            sent.add(task.messages)
            let_others_go_on(now + 1)
    return arrivals
