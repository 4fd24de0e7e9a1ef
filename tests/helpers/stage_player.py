"""A step of stages, played chunk by chunk in plain Python: what `trainer.planning.stages.steps` is to say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trainer.planning.stages.problem import StageProblem
from trainer.planning.stages.schedule import Chunk, order, stages


class Played(NamedTuple):
    """Seconds of the step, and the most bytes that each device held."""

    step_s: float
    memory: list[float]


def play(problem: StageProblem, devices: Sequence[int]) -> Played:
    """Return what one assignment comes to."""
    return _Player(problem, devices).play()


class _Player:
    def __init__(self, problem: StageProblem, devices: Sequence[int]) -> None:
        self.problem, self.devices, self.stages = problem, devices, stages(devices)
        self.parts = [range(one.start, one.stop) for one in self.stages]
        self.free = [0.0] * problem.devices
        self.links: dict[tuple[int, int], float] = {}
        self.arrived: dict[tuple[str, int, int, int], float] = {}

    def reads(self, source: int, reader: int) -> bool:
        moved = self.problem.moved_bytes
        return any(moved[p, q] > 0 for p in self.parts[source] for q in self.parts[reader])

    def first_reader(self, source: int, device: int) -> int | None:
        for reader in range(source + 1, len(self.stages)):
            if self.stages[reader].device == device and self.reads(source, reader):
                return reader
        return None

    def bytes_to(self, source: int, device: int) -> float:
        there = [q for q, holder in enumerate(self.devices) if holder == device]
        moved = self.problem.moved_bytes
        return sum(max((moved[p, q] for q in there), default=0.0) for p in self.parts[source])

    def starts(self, chunk: Chunk) -> float:
        device, found = self.stages[chunk.stage].device, [self.free[self.stages[chunk.stage].device]]
        for other, stage in enumerate(self.stages):
            if stage.device != device and (
                (chunk.passing == "forward" and other < chunk.stage and self.reads(other, chunk.stage))
                or (
                    chunk.passing == "backward"
                    and other > chunk.stage
                    and self.first_reader(chunk.stage, stage.device) == other
                )
            ):
                found.append(self.arrived[chunk.passing, chunk.micro, other, device])
        return max(found)

    def bytes_after(self, chunk: Chunk, target: int) -> float:
        if chunk.passing == "forward":
            return self.bytes_to(chunk.stage, target)
        device = self.stages[chunk.stage].device
        return sum(
            self.bytes_to(source, device)
            for source in range(chunk.stage)
            if self.stages[source].device == target and self.first_reader(source, device) == chunk.stage
        )

    def read_bytes(self, stage: int) -> float:
        own, moved = self.parts[stage], self.problem.moved_bytes
        return sum(max(moved[p, q] for q in own) for p in range(len(self.devices)) if p not in own)

    def play(self) -> Played:
        one = self.problem
        state = [
            sum(one.state_bytes[p] for p, holder in enumerate(self.devices) if holder == device)
            for device in range(one.devices)
        ]
        held, most = list(state), list(state)
        latest: dict[int, Chunk] = {}
        for chunk in order(len(self.stages), one.micro_batches, one.schedule):
            device = self.stages[chunk.stage].device
            forward = chunk.passing == "forward"
            seconds = one.forward_s if forward else one.backward_s
            end = self.starts(chunk) + sum(seconds[p, device] for p in self.parts[chunk.stage])
            whole = kept = sum(one.kept_bytes[p] for p in self.parts[chunk.stage])
            if one.again_s is not None:
                kept = min(whole, self.read_bytes(chunk.stage))
                if not forward and kept < whole and latest[device] != chunk._replace(passing="forward"):
                    inside, last = one.again_s[:, list(self.parts[chunk.stage]), device]
                    end += sum(inside[:-1]) + last[-1]
                if not forward:
                    most[device] = max(most[device], held[device] - kept + whole)
            latest[device] = chunk
            self.free[device] = end
            held[device] += (1 if forward else -1) * kept
            most[device] = max(most[device], held[device])
            for target in set(range(one.devices)) - {device}:
                moved = self.bytes_after(chunk, target)
                if moved:
                    begins = max(end, self.links.get((device, target), 0.0))
                    rate = one.bytes_per_second[device, target]
                    ends = begins + one.latency_s[device, target] + moved / rate
                    self.links[device, target] = ends
                    self.arrived[chunk.passing, chunk.micro, chunk.stage, target] = ends
        for p, device in enumerate(self.devices):
            self.free[device] += one.reduced_s[p, device] + one.update_s[p, device]
        return Played(max(self.free), most)
