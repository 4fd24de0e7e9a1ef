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
    Send,
    Task,
    TaskLists,
    Update,
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
    places = {rank: _Place(placement, rank) for rank in lists}
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
        said = "; ".join(
            f"rank {rank} waits for {next(one for one in task.messages if one not in arrived)}"
            for rank, task in waiting.items()
            if isinstance(task, Receive)
        )
        raise ConfigError(f"The ranks would wait for each other for ever: {said}.")


def _check_messages(lists: TaskLists) -> None:
    everything = [task for tasks in lists.values() for task in tasks]
    sent = Counter(one for task in everything if isinstance(task, Send) for one in task.messages)
    received = Counter(one for task in everything if isinstance(task, Receive) for one in task.messages)
    for one, other, what in ((sent, received, "never received"), (received, sent, "never sent")):
        if odd := next(iter(one - other), None):
            raise ConfigError(f"The {odd} is {what}.")
    for message, times in sent.items():
        if times > 1:
            raise ConfigError(f"The {message} is sent {times} times.")
    together = {task.messages for task in everything if isinstance(task, Send)}
    for task in everything:
        if isinstance(task, Receive) and task.messages not in together:
            raise ConfigError(f"The {task.messages[0]} is not sent together with what it is received with.")


class _Place:
    """What one rank has so far."""

    def __init__(self, placement: Placement, rank: int) -> None:
        self._placement, self._rank = placement, rank
        self._network = placement.network
        self._had: set[Message] = set()
        self._computed: set[Unit] = set()
        # Whose gradients of inputs, and of weights, there are.
        self._differentiated: set[Unit] = set()
        self._weighed: set[Unit] = set()
        self._updated = False

    def do(self, task: Task) -> None:
        """Carry out a task.

        Raises:
            ConfigError: something that it reads is not there.
        """
        if isinstance(task, Receive):
            self._had.update(task.messages)
        elif isinstance(task, Send):
            for message in task.messages:
                self._check_send(message)
        elif isinstance(task, Compute):
            self._check_reads(task.unit)
            self._computed.add(task.unit)
        elif isinstance(task, Differentiate):
            self._check_gradient(task.unit)
            if task.of != "weights":
                self._differentiated.add(task.unit)
            if task.of != "inputs":
                self._weighed.add(task.unit)
        elif isinstance(task, Update):
            self._check_parts()
            self._updated = True

    def _check_reads(self, unit: Unit) -> None:
        """Each box that a unit reads is made here or has been received; all parts of a sum are."""
        for reading, wanted in zip(self._network[unit.operation].readings, unit.reads, strict=True):
            if wanted is None:
                continue
            flow = self._placement.flows[reading.tensor]
            there = []
            for number, move in enumerate(flow.moves):
                if move.target.rank != self._rank or move.box & wanted is None:
                    continue
                if self._is_there(reading.tensor, number, move.crosses):
                    there.append(move.box)
                elif self._network[reading.tensor].sums:
                    raise self._error(f"compute {unit}", f"a part of {reading.tensor}{move.box}")
            if missing := boxes.subtract(wanted, there):
                raise self._error(f"compute {unit}", f"{reading.tensor}{missing[0]}")

    def _is_there(self, tensor: str, number: int, crosses: bool) -> bool:
        if crosses:
            return any(
                one.content == "output" and one.name == tensor and one.number == number for one in self._had
            )
        return all(unit in self._computed for unit in self._placement.of(tensor) if unit.rank == self._rank)

    def _check_send(self, message: Message) -> None:
        what = f"send the {message}"
        own = [unit for unit in self._placement.units if unit.rank == self._rank]
        if message.content == "output" and any(
            unit not in self._computed for unit in own if unit.operation == message.name
        ):
            raise self._error(what, f"{message.name}, which is not computed yet")
        if message.content == "gradient":
            moved = self._placement.flows[message.name].moves[message.number].box
            if any(
                unit not in self._differentiated and self._reads(unit, message.name, moved) for unit in own
            ):
                raise self._error(what, "gradients of all that read it")
        if message.content == "part" and any(
            unit not in self._weighed
            for unit in own
            if message.name in (weight.path for weight in self._network[unit.operation].weights)
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

    def _check_gradient(self, unit: Unit) -> None:
        """The unit was computed, and all gradients of its output are here."""
        if unit not in self._computed:
            raise self._error(f"differentiate {unit}", "its output")
        flow = self._placement.flows.get(unit.operation)
        for message in messages("gradient", unit.operation, flow, back=True) if flow else ():
            if message.target == self._rank and message not in self._had:
                raise self._error(f"differentiate {unit}", f"the {message}")
        for reader in self._network.readers(unit.operation):
            for other in self._placement.of(reader.name):
                if other.rank == self._rank and other not in self._differentiated:
                    raise self._error(f"differentiate {unit}", f"the gradient from {reader.name}")

    def _check_parts(self) -> None:
        for path, flow in self._placement.reductions.items():
            for message in messages("part", path, flow):
                if message.target == self._rank and message not in self._had:
                    raise self._error("update", f"the {message}")

    def _error(self, task: str, missing: str) -> ConfigError:
        return ConfigError(f"Rank {self._rank} would {task} without {missing}.")
