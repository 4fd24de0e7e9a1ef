"""Whether task lists can be carried out: found before anything runs, and named. Pure."""

from __future__ import annotations

from collections import Counter

from trainer.errors import ConfigError
from trainer.planning.placement import boxes
from trainer.planning.placement.boxes import Box
from trainer.planning.placement.tasks import (
    Compute,
    Differentiate,
    Message,
    Receive,
    Recompute,
    Send,
    Task,
    TaskLists,
    UpdateOwned,
    message,
    messages,
)
from trainer.planning.placement.units import Placement, Unit


def check(placement: Placement, lists: TaskLists) -> None:
    """See that every message is sent and received once, that no rank waits for ever, and that nothing is
    read before it is there.

    Raises:
        ConfigError: names the rank, the task and what is missing.
    """
    _check_messages(lists)
    arrived: set[Message] = set()
    everything = [task for tasks in lists.values() for task in tasks]
    micro = 1 + max((task.micro for task in everything if isinstance(task, Compute)), default=0)
    places = {rank: _Place(placement, rank, micro) for rank in lists}
    position = dict.fromkeys(lists, 0)
    moving = True
    while moving:
        moving = False
        for rank, tasks in lists.items():
            while position[rank] < len(tasks):
                task = tasks[position[rank]]
                if isinstance(task, Receive) and not arrived.issuperset(task.messages):
                    break
                places[rank].do(task)
                if isinstance(task, Send):
                    arrived.update(task.messages)
                position[rank] += 1
                moving = True
    waiting = {rank: lists[rank][at] for rank, at in position.items() if at < len(lists[rank])}
    if waiting:
        waits = "; ".join(
            f"rank {rank} waits for {next(one for one in task.messages if one not in arrived)}"
            for rank, task in waiting.items()
            if isinstance(task, Receive)
        )
        raise ConfigError(f"The ranks would wait for each other for ever: {waits}.")


def _check_messages(lists: TaskLists) -> None:
    everything = [task for tasks in lists.values() for task in tasks]
    sent = Counter(one for task in everything if isinstance(task, Send) for one in task.messages)
    received = Counter(one for task in everything if isinstance(task, Receive) for one in task.messages)
    for one, other, what in ((sent, received, "never received"), (received, sent, "never sent")):
        if odd := next(iter(one - other), None):
            raise ConfigError(f"The {odd} is {what}.")
    for one_sent, times in sent.items():
        if times > 1:
            raise ConfigError(f"The {one_sent} is sent {times} times.")
    together = {task.messages for task in everything if isinstance(task, Send)}
    for task in everything:
        if isinstance(task, Receive) and task.messages not in together:
            raise ConfigError(f"The {task.messages[0]} is not sent together with what it is received with.")


# A unit, and the micro-batch that it was computed for.
_Pass = tuple[Unit, int]


class _Place:
    """What one rank has so far."""

    def __init__(self, placement: Placement, rank: int, micro_batches: int) -> None:
        self._placement, self._rank, self._micro_batches = placement, rank, micro_batches
        self._network = placement.network
        self._had: set[Message] = set()
        self._computed: set[_Pass] = set()
        # Whose gradients of inputs, and of weights, there are.
        self._differentiated: set[_Pass] = set()
        self._weighed: set[_Pass] = set()
        self._updated = False

    def do(self, task: Task) -> None:
        """Carry out a task.

        Raises:
            ConfigError: something that it reads is not there.
        """
        if isinstance(task, Receive):
            self._had.update(task.messages)
        elif isinstance(task, Send):
            for one in task.messages:
                self._check_send(one)
        elif isinstance(task, Compute):
            self._check_reads(task.unit, task.micro)
            self._computed.add((task.unit, task.micro))
        elif isinstance(task, Recompute):
            if (task.unit, task.micro) not in self._computed:
                raise self._error(f"compute {task.unit} again", "its first pass")
        elif isinstance(task, Differentiate):
            self._check_gradient(task.unit, task.micro)
            if task.of != "weights":
                self._differentiated.add((task.unit, task.micro))
            if task.of != "inputs":
                self._weighed.add((task.unit, task.micro))
        elif isinstance(task, UpdateOwned):
            self._check_parts()
            self._updated = True

    def _check_reads(self, unit: Unit, micro: int) -> None:
        """See that each box that a unit reads, and each part of a sum, is made here or has been received."""
        for reading, need in zip(self._network[unit.operation].readings, unit.reads, strict=True):
            if need is None:
                continue
            flow = self._placement.flows[reading.tensor]
            there = []
            for number, move in enumerate(flow.moves):
                if move.target.rank != self._rank or move.box & need is None:
                    continue
                if self._is_there(reading.tensor, number, micro, move.crosses):
                    there.append(move.box)
                elif self._network[reading.tensor].sums:
                    raise self._error(f"compute {unit}", f"a part of {reading.tensor}{move.box}")
            if missing := boxes.subtract(need, there):
                raise self._error(f"compute {unit}", f"{reading.tensor}{missing[0]}")

    def _is_there(self, tensor: str, number: int, micro: int, crosses: bool) -> bool:
        if crosses:
            return message("output", tensor, self._placement.flows[tensor], number, micro=micro) in self._had
        own = (unit for unit in self._placement.of(tensor) if unit.rank == self._rank)
        return all((unit, micro) in self._computed for unit in own)

    def _check_send(self, message: Message) -> None:
        what = f"send the {message}"
        own = [unit for unit in self._placement.units if unit.rank == self._rank]
        if message.content == "output" and any(
            (unit, message.micro) not in self._computed for unit in own if unit.operation == message.name
        ):
            raise self._error(what, f"{message.name}, which is not computed yet")
        if message.content == "gradient":
            moved = self._placement.flows[message.name].moves[message.number].box
            if any(
                (unit, message.micro) not in self._differentiated and self._reads(unit, message.name, moved)
                for unit in own
            ):
                raise self._error(what, "gradients of all that read it")
        if message.content == "part" and any(
            (unit, micro) not in self._weighed
            for unit in own
            if message.name in (weight.path for weight in self._network[unit.operation].weights)
            for micro in range(self._micro_batches)
        ):
            raise self._error(what, "gradients of all that use it")
        if message.content == "value" and not self._updated:
            raise self._error(what, "the update")

    def _reads(self, unit: Unit, tensor: str, part: Box) -> bool:
        readings = self._network[unit.operation].readings
        return any(
            reading.tensor == tensor and box is not None and box & part is not None
            for reading, box in zip(readings, unit.reads, strict=True)
        )

    def _check_gradient(self, unit: Unit, micro: int) -> None:
        """The unit was computed, and all gradients of its output are here."""
        if (unit, micro) not in self._computed:
            raise self._error(f"differentiate {unit}", "its output")
        flow = self._placement.flows.get(unit.operation)
        for one in messages("gradient", unit.operation, flow, back=True, micro=micro) if flow else ():
            if one.target == self._rank and one not in self._had:
                raise self._error(f"differentiate {unit}", f"the {one}")
        for reader in self._network.readers(unit.operation):
            for other in self._placement.of(reader.name):
                if other.rank == self._rank and (other, micro) not in self._differentiated:
                    raise self._error(f"differentiate {unit}", f"the gradient from {reader.name}")

    def _check_parts(self) -> None:
        for path, flow in self._placement.reductions.items():
            for one in messages("part", path, flow):
                if one.target == self._rank and one not in self._had:
                    raise self._error("update", f"the {one}")
        for unit in self._placement.units:
            if unit.rank == self._rank and any(w.trainable for w in self._network[unit.operation].weights):
                for micro in range(self._micro_batches):
                    if (unit, micro) not in self._weighed:
                        raise self._error("update", f"gradients of the weights of {unit}")

    def _error(self, task: str, missing: str) -> ConfigError:
        return ConfigError(f"Rank {self._rank} would {task} without {missing}.")
