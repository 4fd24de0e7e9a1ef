"""What a scaling study measures: its cells, where the processes of a cell run, and what a row holds.

Pure, and without TensorFlow.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from trainer.bench import hardware
from trainer.bench.scaling.variants import title
from trainer.planning import communication

SCALINGS = ("strong", "weak")
# Bytes that each host's interface has sent and received so far.
Counters = Mapping[str, tuple[int, int]]
PARTS = ("input_wait", "forward", "backward", "exposed", "overlapped", "update", "other")


@dataclasses.dataclass(frozen=True)
class Cell:
    """One point of a study.

    Attributes:
        model: name of a registered network.
        size: edge of the cubic volumes, in voxels.
        width: channels of the first stage; None: the network's own.
        batch: samples per step: of all ranks together if `scaling` is strong, of each rank if it is weak.
        scaling: `strong` or `weak`.
        strategy: see `variants.Variant`.
        options: of the strategy: the keys of its section `train.strategy` (but `count`, which is `servers`).
        ranks: processes that compute gradients.
        servers: parameter servers, 0 without any; those that are colocated are no further processes.
        hosts: hosts that the ranks are spread over; 0: all processes on this host, without a testbed.
        bandwidth: rate of every host's link each way, as `tc` writes it ("200mbit"); None: not shaped.
        steps: timed steps per measurement.
        repeat: number of the measurement, from 0.
        epochs: of a short training from shards, for accuracy against time; 0: synthetic batches are timed.
        emulated: whether the hosts are those of a testbed, which share this machine's cores.
        cpus: cores whose time each emulated host gets at most; None: no limit.
    """

    model: str
    size: int = 32
    width: int | None = 8
    batch: int = 8
    scaling: str = "strong"
    strategy: str = "data"
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    ranks: int = 1
    servers: int = 0
    hosts: int = 0
    bandwidth: str | None = None
    steps: int = 10
    repeat: int = 0
    epochs: int = 0
    emulated: bool = False
    cpus: float | None = None

    @property
    def train(self) -> bool:
        """Whether it is a training."""
        return self.epochs > 0

    @property
    def rank_batch(self) -> int:
        """Samples per rank and step."""
        return self.batch if self.scaling == "weak" else self.batch // self.ranks

    @property
    def global_batch(self) -> int:
        """Samples per step of all ranks together."""
        return self.rank_batch * self.ranks

    @property
    def separate_servers(self) -> int:
        """Servers that are processes of their own: those after the ranks."""
        return 0 if self.options.get("placement") == "colocated" else self.servers

    @property
    def processes(self) -> int:
        """Ranks and servers that mpirun starts."""
        return self.ranks + self.separate_servers

    @property
    def machines(self) -> int:
        """Hosts that the cell needs: its ranks', and one for each separate server; 0: this one."""
        return self.hosts + self.separate_servers if self.hosts else 0

    def places(self) -> tuple[int, ...]:
        """Return the host of each process, in [0, machines): ranks in blocks, each separate server alone."""
        if not self.hosts:
            return (0,) * self.processes
        ranks = (rank * self.hosts // self.ranks for rank in range(self.ranks))
        return (*ranks, *range(self.hosts, self.machines))

    def describe(self) -> str:
        """Return the cell in one line."""
        what = f"{self.epochs} epochs" if self.train else f"{self.scaling} scaling"
        ranks = f"{self.ranks} rank{'s' if self.ranks > 1 else ''}"
        how = title(self.strategy, self.options, self.servers)
        where = self.place(self.hosts)
        return f"{self.model} {self.size}^3, {what}, batch {self.batch}, {how}, {ranks} on {where}"

    def place(self, hosts: int) -> str:
        """Return in words where `hosts` hosts of this cell's kind are."""
        if not hosts:
            return "this host"
        words = [f"{hosts} {'emulated ' if self.emulated else ''}host{'s' if hosts > 1 else ''}"]
        if self.bandwidth:
            words.append(f"at {self.bandwidth}")
        if self.cpus:
            words.append(f"with {self.cpus:g} cores each")
        return " ".join(words)


def predict(
    cell: Cell, rounds: communication.Rounds, compute_s: float, bytes_per_second: float | None
) -> dict[str, Any]:
    """Return the cost model's prediction for a cell.

    Args:
        cell: what will be measured; of one on this host nothing is predicted.
        rounds: in which a step's messages are sent, from process to process.
        compute_s: seconds of a step without communication.
        bytes_per_second: of each host's link each way; None: it is not shaped.

    Returns:
        `interfaces`: bytes per step of each host, `sent` and `received`; `payload`: the same without headers;
        and where the links have a rate `seconds` of communication per step, `compute_s`, and their sum
        `step_s`, as if nothing overlapped.
    """
    if not cell.hosts:
        return {}
    # Frames are merged on a link that is not shaped: see cingulum/bench/scaling/measure.py.
    wire, bare = (
        communication.predict(
            rounds, cell.places(), bytes_per_second=bytes_per_second or float("inf"), frames=frames
        )
        for frames in (communication.ETHERNET if bytes_per_second else communication.BARE, communication.BARE)
    )
    prediction: dict[str, Any] = {
        "interfaces": [one._asdict() for one in wire.interfaces],
        "payload": [one._asdict() for one in bare.interfaces],
    }
    if bytes_per_second:
        prediction |= {"seconds": wire.seconds, "compute_s": compute_s, "step_s": wire.seconds + compute_s}
    return prediction


@dataclasses.dataclass(frozen=True)
class MeasuredCell:
    """A cell with what it measured.

    Attributes:
        cell: what was measured.
        samples_per_second: of all ranks together; 0.0 if it failed.
        step_s: seconds per step over the timed steps, mean over ranks: `median`, `min`, `max`.
        timeline: seconds per step of each of `PARTS`, mean over ranks; one that was not measured is left out.
        interfaces: `{host: {"sent": B, "received": B}}`, bytes per step on the interface of each host.
        predicted: by trainer/planning/communication.py: `seconds` of communication per step, `step_s` of the
            whole step, and `interfaces` as above; empty if nothing was predicted.
        machine: what the figures belong to, as `hardware.here()` tells it.
        curve: of a training, one point for each epoch: `seconds` since the first step, `step`, and scores.
        facts: anything else worth keeping (versions, parameters, staleness histogram).
        error: why the cell failed, or None.
    """

    cell: Cell
    samples_per_second: float = 0.0
    step_s: Mapping[str, float] = dataclasses.field(default_factory=dict)
    timeline: Mapping[str, float] = dataclasses.field(default_factory=dict)
    interfaces: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    predicted: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    machine: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    curve: Sequence[Mapping[str, float]] = ()
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    error: str | None = None

    @classmethod
    def of_steps(
        cls, cell: Cell, seconds: Sequence[Sequence[float]], before: Counters, after: Counters
    ) -> MeasuredCell:
        """Return the row of timed steps, without a prediction and without the parts of a step.

        Step times are means over ranks of each rank's median, shortest and longest step; bytes are per step.

        Args:
            cell: what was measured.
            seconds: of the timed steps of each rank.
            before: counters right before these steps.
            after: the same, right after.
        """
        median = statistics.mean(statistics.median(one) for one in seconds)
        return cls(
            cell,
            samples_per_second=cell.global_batch / median,
            step_s={
                "median": median,
                "min": statistics.mean(min(one) for one in seconds),
                "max": statistics.mean(max(one) for one in seconds),
            },
            interfaces={
                host: {
                    "sent": (after[host][0] - before[host][0]) / cell.steps,
                    "received": (after[host][1] - before[host][1]) / cell.steps,
                }
                for host in before
            },
            machine=hardware.here(),
            facts={"mean_step_s": statistics.mean(sum(one) for one in seconds) / cell.steps},
        )

    def to_json(self) -> str:
        """Return one line of JSON."""
        return json.dumps({"key": key(self.cell), **dataclasses.asdict(self)}, sort_keys=True)

    @classmethod
    def from_json(cls, line: str) -> MeasuredCell:
        """Return the row that `to_json` wrote.

        Raises:
            ValueError: the line is not whole, or no row of this version.
        """
        try:
            fields = json.loads(line)
            fields.pop("key")
            return cls(Cell(**fields.pop("cell")), curve=tuple(fields.pop("curve")), **fields)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"no row of a study: {error}") from None


def key(cell: Cell) -> str:
    """Return 16 hexadecimal digits that name the cell: equal for equal cells, on any host."""
    text = json.dumps(dataclasses.asdict(cell), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
