"""When each tensor of a rank is there while it plays its task list: from its making to its last use. Pure."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

from trainer.planning.placement.boxes import Box
from trainer.planning.placement.exchanges import Redistribution
from trainer.planning.placement.keeping import Kept
from trainer.planning.placement.operations import Operation
from trainer.planning.placement.tasks import (
    Compute,
    Content,
    Differentiate,
    Message,
    Receive,
    Recompute,
    Send,
    Task,
    message,
)
from trainer.planning.placement.units import Placement, Unit

# Temporary tensors beside what an operation reads and returns, as many as it has elements of what it reads:
# squares of differences, shares of classes, the gradient times the input.
_FORWARD = {"batch_moments": 1.0, "group_moments": 1.0, "loss": 3.0}
_BACKWARD = {"batch_norm": 1.0, "batch_norm_inference": 1.0, "group_norm": 1.0, "loss": 4.0}
# Their windows reach beyond the volume: what they read is copied with a border.
_WINDOWED = ("convolution", "maximum", "average")
# The gradient of what they read is that of their output, or overwrites it.
_IN_PLACE = ("activation", "dropout", "elementwise", "reshape")

# What a tensor is, and of which micro-batch; None: of the whole update.
_Key = Message | tuple[Hashable, int | None]
# A tensor, and the box that it holds.
_Part = tuple[_Key, Box]


class Lives:
    """The tensors of one rank.

    Args:
        placement: of the network.
        tasks: of this rank, in order.
        rank: whose.
    """

    def __init__(self, placement: Placement, tasks: tuple[Task, ...], rank: int) -> None:
        self._placement, self._rank = placement, rank
        self._operations = {one.name: one for one in placement.network.operations}
        self._boxes = Kept(placement, rank)
        self._own: dict[str, list[Unit]] = {}
        # Of each micro-batch, the last task of its forward pass here.
        self._forward_ends: dict[int, int] = {}
        for number, task in enumerate(tasks):
            if isinstance(task, Compute):
                if task.micro == 0:
                    self._own.setdefault(task.unit.operation, []).append(task.unit)
                self._forward_ends[task.micro] = number
        self._size: dict[_Key, int] = {}
        self._born: dict[_Key, int] = {}
        self._last: dict[_Key, int] = {}
        # Of a micro-batch: how often something of it was computed again without a pause, and whose outputs
        # of now are those.
        self._runs: dict[int, int] = {}
        self._again_there: set[tuple[str, int]] = set()
        # Of tensors that are there during one task only.
        self._passing = [0.0] * len(tasks)
        # Of a micro-batch: gradients of what units have read, by tensor, and of what they have computed.
        self._gradients: dict[tuple[str, int], list[_Part]] = {}
        self._upstream: dict[tuple[Unit, int], _Key] = {}
        self._now = self._micro = 0
        before: Task | None = None
        for self._now, task in enumerate(tasks):
            if isinstance(task, Recompute) and not isinstance(before, Recompute):
                self._runs[task.micro] = self._runs.get(task.micro, 0) + 1
            self._do(task)
            before = task
        if len(self._forward_ends) > 1:
            self._keep_inputs()

    def _keep_inputs(self) -> None:
        """The inputs of all micro-batches are parts of one batch, which is there all the time."""
        for key in self._size:
            unit = None if isinstance(key, Message) else key[0]
            if isinstance(unit, Unit) and not self._operations[unit.operation].readings:
                self._born[key], self._last[key] = 0, self._now

    @property
    def kept(self) -> int:
        """Bytes of what backward passes need of forward passes that are done, where they are most."""
        return self.kept_with({})

    def kept_with(self, early: Mapping[tuple[Message, ...], int]) -> int:
        """Return the same, with messages that are not asked for yet.

        Args:
            early: from when on received bundles are there: see `early.early`.
        """
        ends, spans = self._forward_ends, []
        for key, size in self._size.items():
            micro = key.micro if isinstance(key, Message) else key[1]
            if micro in ends and self._born[key] <= ends[micro] < self._last[key]:
                spans.append((size, self._born[key], self._last[key]))
        for bundle, there in early.items():
            spans += [(one.bytes, there, self._born[one] - 1) for one in bundle if there < self._born[one]]
        return math.ceil(self._most(spans, [0.0] * len(self._passing)))

    @property
    def most(self) -> int:
        """Bytes of all tensors where they are most."""
        spans = [(size, self._born[key], self._last[key]) for key, size in self._size.items()]
        return math.ceil(self._most(spans, self._passing))

    @staticmethod
    def _most(spans: Iterable[tuple[int, int, int]], passing: Sequence[float]) -> float:
        changes = [0] * (len(passing) + 1)
        for size, born, last in spans:
            changes[born] += size
            changes[last + 1] -= size
        now, most = 0, 0.0
        for change, more in zip(changes, passing, strict=False):
            now += change
            most = max(most, now + more)
        return most

    def _use(self, key: _Key, size: int) -> _Key:
        """A tensor is made, or, where it was made before, needed."""
        self._size.setdefault(key, size)
        self._born.setdefault(key, self._now)
        self._last[key] = self._now
        return key

    def _pass(self, size: float) -> None:
        self._passing[self._now] += size

    def _do(self, task: Task) -> None:
        if isinstance(task, Receive):
            for message in task.messages:
                self._use(message, message.bytes)
        elif isinstance(task, Send):
            for message in task.messages:
                self._micro = message.micro
                self._send(message, alone=len(task.messages) == 1)
        elif isinstance(task, Compute):
            self._micro = task.micro
            self._compute(task.unit)
        elif isinstance(task, Recompute):
            self._micro = task.micro
            self._again_there.add((task.unit.operation, task.micro))
            self._compute(task.unit)
        elif isinstance(task, Differentiate):
            self._micro = task.micro
            self._differentiate(task.unit, task.of)
        else:
            self._update()

    def _send(self, message: Message, *, alone: bool) -> None:
        if message.content in ("output", "gradient"):
            box = self._placement.flows[message.name].moves[message.number].box
            if message.content == "output":
                sent = list(self._own_parts(message.name, box))
            else:
                sent = [
                    part for part in self._gradients[message.name, message.micro] if part[1] & box is not None
                ]
            for key, held in sent:
                self._use(key, self._bytes(message.name, held))
            if alone and len(sent) == 1 and sent[0][1] == box:
                return  # it leaves from where it lies
        self._pass(message.bytes)

    def _compute(self, unit: Unit) -> None:
        operation = self._operations[unit.operation]
        for tensor, box in self._reads(unit):
            size = self._bytes(tensor, box)
            self._read(tensor, box)
            self._pass(self._bordered(operation, unit, size) + _FORWARD.get(operation.kind, 0.0) * size)
        self._pass(self._scores(operation, unit))
        self._use(self._output(unit), self._bytes(unit.operation, unit.box))

    def _output(self, unit: Unit) -> _Key:
        """What a unit has computed last: in the second pass, if it was computed again."""
        is_again = (unit.operation, self._micro) in self._again_there
        return ("again", unit) if is_again else unit, self._micro

    def _differentiate(self, unit: Unit, of: str) -> None:
        operation = self._operations[unit.operation]
        upstream = self._use(self._gradient(unit), self._bytes(unit.operation, unit.box))
        if operation.keeps == "output":
            self._pass(self._again(unit.operation, unit.box))
        for number, (tensor, box) in enumerate(self._reads(unit)):
            size = self._bytes(tensor, box)
            if operation.keeps == "inputs":
                self._pass(self._again(tensor, box))
            # Copies with a border: of the input for gradients of weights, and of the gradient of the input.
            self._pass(self._bordered(operation, unit, size))
            if of != "weights" and self._operations[tensor].readings:  # the network's inputs get no gradient
                overwrites = operation.kind in _IN_PLACE and size == self._size[upstream]
                key = upstream if overwrites else (("gradient of read", unit, number), self._micro)
                self._gradients.setdefault((tensor, self._micro), []).append((self._use(key, size), box))
            if number == 0:
                self._pass(_BACKWARD.get(operation.kind, 0.0) * size)
        self._pass(2 * self._scores(operation, unit))
        for weight, block in zip(operation.weights, unit.blocks, strict=True):
            if of != "inputs" and weight.trainable:
                # Those of later micro-batches are added to it.
                self._use((("part", weight.path, unit), None), block.size * weight.width)

    def _update(self) -> None:
        """The parts of gradients are added up, and none is needed afterwards."""
        for key, size in self._size.items():
            if key.content == "part" if isinstance(key, Message) else key[1] is None:
                self._use(key, size)

    def _reads(self, unit: Unit) -> Iterator[tuple[str, Box]]:
        readings = self._operations[unit.operation].readings
        for reading, box in zip(readings, unit.reads, strict=False):  # inputs read nothing
            if box is not None:
                yield reading.tensor, box

    def _read(self, tensor: str, box: Box) -> None:
        """A box is read: an output or a message itself, or several put together, once for all readers."""
        key = (tensor, box, self._runs.get(self._micro, 0)), self._micro
        if key not in self._size:
            flow = self._placement.flows[tensor]
            parts = list(self._arriving("output", tensor, flow, box))
            for part, held in parts:
                self._use(part, self._bytes(tensor, held))
            if len(parts) == 1 and parts[0][1] == box:
                return
        self._use(key, self._bytes(tensor, box))

    def _again(self, tensor: str, box: Box) -> int:
        """A box is needed backwards; returns the bytes of the copy that is cut out for it."""
        kept = self._boxes.around(tensor, box)
        own = next((unit for unit in self._own.get(tensor, ()) if unit.box == kept), None)
        if own is None or self._operations[tensor].sums:
            self._read(tensor, kept)
        else:
            self._use(self._output(own), self._bytes(tensor, kept))
        return 0 if kept == box else self._bytes(tensor, box)

    def _gradient(self, unit: Unit) -> _Key:
        """What the gradients of a unit's output are added up to; one alone is taken as it is."""
        now = unit, self._micro
        if now not in self._upstream:
            flow = self._placement.flows.get(unit.operation)
            size = self._bytes(unit.operation, unit.box)
            parts = list(self._arriving_back(unit, flow)) if flow else []
            for key, held in parts:
                self._use(key, self._bytes(unit.operation, held))
                self._pass(0 if held == unit.box else size)
            alone = len(parts) == 1 and parts[0][1] == unit.box
            self._upstream[now] = parts[0][0] if alone else (("gradient", unit), self._micro)
        return self._upstream[now]

    def _arriving(self, content: Content, tensor: str, flow: Redistribution, wanted: Box) -> Iterator[_Part]:
        for number, move in enumerate(flow.moves):
            if move.target.rank != self._rank or move.box & wanted is None:
                continue
            if move.crosses:
                yield message(content, tensor, flow, number, micro=self._micro), move.box
            else:
                yield from self._own_parts(tensor, move.box)

    def _own_parts(self, tensor: str, box: Box) -> Iterator[_Part]:
        for unit in self._own.get(tensor, ()):
            if unit.box & box is not None:
                yield self._output(unit), unit.box

    def _arriving_back(self, unit: Unit, flow: Redistribution) -> Iterator[_Part]:
        for number, move in enumerate(flow.moves):
            if move.source.rank != self._rank or move.box & unit.box is None:
                continue
            if move.crosses:
                one = message("gradient", unit.operation, flow, number, back=True, micro=self._micro)
                yield one, move.box
            else:
                read = self._gradients.get((unit.operation, self._micro), ())
                yield from (part for part in read if part[1] & unit.box is not None)

    def _bytes(self, tensor: str, box: Box) -> int:
        return box.size * self._operations[tensor].width

    def _bordered(self, operation: Operation, unit: Unit, size: int) -> float:
        """Bytes of what is read with its border; 0 without one."""
        needs = operation.readings[0].needs(unit.box) if operation.kind in _WINDOWED else None
        if needs is None or not any(need.before or need.after for need in needs):
            return 0.0
        return size * math.prod(
            1 + (need.before + need.after) / (need.range[1] - need.range[0]) for need in needs
        )

    def _scores(self, operation: Operation, unit: Unit) -> float:
        """Bytes of what attention compares: every place with every other, more than once."""
        if operation.kind != "attention":
            return 0.0
        keys, queries = (math.prod(box.shape[:-1]) for box in unit.reads[:2] if box is not None)
        return 3.0 * keys * queries / unit.box.shape[0] * operation.width
