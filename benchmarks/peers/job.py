"""What a process of a peer does. It also runs in the peers' environment, so it needs nothing but Python."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Literal

from trainer.errors import InputError

Kind = Literal["rank", "server", "coordinator"]

# The options of each peer, and their types.
OPTIONS: dict[str, dict[str, type]] = {
    "ddp": {"bucket_cap_mb": float, "gradient_as_bucket_view": bool, "static_graph": bool},
    "multiworker": {"bytes_per_pack": int, "starting_threads": int},
    "tf-parameter-server": {"placement": str, "starting_threads": int},
}
PLACEMENTS = ("separate", "colocated")
OPTIMIZERS = ("adamw", "sgd")


@dataclasses.dataclass(frozen=True)
class PeerJob:
    """A peer, and the training steps that it is to time.

    Attributes:
        peer: `ddp`, `multiworker` or `tf-parameter-server`.
        model: name of a registered network.
        size: edge of the cubic volumes, in voxels.
        width: channels of the first stage; None: the network's own.
        network: further arguments of the network's function.
        batch: samples per rank and step.
        batches: different batches that each rank has in memory; it goes round them.
        warm_up: steps before the timed ones.
        steps: timed steps.
        ranks: processes that compute gradients. With one, `ddp` and `multiworker` train without their
            distribution, as one uses the framework on one process.
        servers: parameter servers, of `tf-parameter-server` only.
        optimizer: `adamw` or `sgd` (with momentum), both Keras' own.
        options: of the peer, see `OPTIONS`.
        weights: .npz to start from, as `work.save` writes it; None: what seed 1 gives in this framework.
        saved: .npz that the first rank writes at the end; None: none.
        timeout_s: longest time that a start, and that all timed steps, may take, in seconds.
    """

    peer: str
    model: str = "resattnet18"
    size: int = 32
    width: int | None = 8
    network: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    batch: int = 4
    batches: int = 4
    warm_up: int = 2
    steps: int = 10
    ranks: int = 1
    servers: int = 0
    optimizer: str = "adamw"
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    weights: str | None = None
    saved: str | None = None
    timeout_s: float = 300.0

    def __post_init__(self) -> None:
        if self.peer not in OPTIONS:
            raise InputError(f"Unknown peer {self.peer!r}.", cure=f"Take {', '.join(OPTIONS)}.")
        known = OPTIONS[self.peer]
        for name, value in self.options.items():
            if name not in known:
                raise InputError(
                    f"{self.peer} has no option {name!r}.", cure=f"It has {', '.join(known) or 'none'}."
                )
            # An int will do for a float; a bool is not an int.
            fits = type(value) is known[name] or (known[name] is float and type(value) is int)
            if not fits or (known[name] in (int, float) and value <= 0):
                raise InputError(f"{self.peer}: {name}={value!r} is not a valid {known[name].__name__}.")
        placement = self.options.get("placement", "separate")
        if placement not in PLACEMENTS:
            raise InputError(f"placement={placement!r}: servers are {' or '.join(PLACEMENTS)}.")
        if self.optimizer not in OPTIMIZERS:
            raise InputError(f"A peer's optimizer is {' or '.join(OPTIMIZERS)}, not {self.optimizer!r}.")
        least = {"ranks": 1, "batch": 1, "batches": 1, "steps": 1, "warm_up": 1}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise InputError(f"{self.peer}: {name}={getattr(self, name)} must be {bound} or more.")
        if (self.servers > 0) != (self.peer == "tf-parameter-server"):
            raise InputError(
                f"{self.peer} cannot have {self.servers} servers.",
                cure="tf-parameter-server needs at least one; the others take none.",
            )

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What each process is: ranks, then servers, then their coordinator."""
        ranks: list[Kind] = ["rank" for _ in range(self.ranks)]
        servers: list[Kind] = ["server" for _ in range(self.servers)]
        return (*ranks, *servers, "coordinator") if servers else tuple(ranks)


@dataclasses.dataclass(frozen=True)
class PeerProcess:
    """One process of a job: what is on its command line.

    Attributes:
        job: what all of them do.
        addresses: `host:port` of each process, in the order of `job.kinds`.
        index: number of this process among them.
        interface: name of the network interface to the others; None: this host's loop.
    """

    job: PeerJob
    addresses: tuple[str, ...]
    index: int
    interface: str | None = None

    @property
    def kind(self) -> Kind:
        """What this process is."""
        return self.job.kinds[self.index]

    @property
    def number(self) -> int:
        """Its number among those of its kind: its rank, if it is one."""
        return self.job.kinds[: self.index].count(self.kind)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Address of each process' host."""
        return tuple(address.rpartition(":")[0] for address in self.addresses)

    def addresses_of(self, kind: Kind) -> list[str]:
        """Return `host:port` of the processes of a kind, in order."""
        return [at for at, what in zip(self.addresses, self.job.kinds, strict=True) if what == kind]

    def to_json(self) -> str:
        """Return one line of JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, line: str) -> PeerProcess:
        """Return the process that `to_json` wrote."""
        fields = json.loads(line)
        return cls(PeerJob(**fields.pop("job")), tuple(fields.pop("addresses")), **fields)
