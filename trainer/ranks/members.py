"""Who takes part in a run, and what it needs of MPI and Horovod: decided before these start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainer.errors import ConfigError

Placement = Literal["separate", "colocated"]
Mode = Literal["sync", "async"]

# Channels of every world with servers: what workers say, and what servers say. A process may be both.
TO_SERVERS = "to servers"
TO_WORKERS = "to workers"
# The channel of `Members(messages=True)`.
MESSAGES = "messages"


@dataclass(frozen=True)
class Members:
    """How `starting.init` divides the launched processes, and what it prepares between them.

    Attributes:
        servers: parameter servers among them.
        placement: `separate`: the last processes serve and are no ranks; `colocated`: the first ranks serve.
        mode: of the servers. Where it is `async`, every worker is a world of one rank.
        messages: whether ranks send each other messages: `World.links` then opens mailboxes on `MESSAGES`.
        groups: whether `World.group` is used, which costs Horovod one more exchange each time it looks.
    """

    servers: int = 0
    placement: Placement = "separate"
    mode: Mode = "sync"
    messages: bool = False
    groups: bool = False

    @property
    def channels(self) -> tuple[str, ...]:
        """The channels that mailboxes may hear and send on."""
        return ((TO_SERVERS, TO_WORKERS) if self.servers else ()) + ((MESSAGES,) if self.messages else ())

    def roles(self, processes: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the processes of the workers and those of the servers, of `processes` in all; pure.

        Raises:
            ConfigError: there are too few processes.
        """
        everyone = tuple(range(processes))
        if self.placement == "colocated":
            if self.servers > processes:
                raise ConfigError(
                    f"train.strategy.count: {self.servers} colocated servers need as many ranks; there are "
                    f"{processes}.",
                    cure=f"Launch {self.servers} ranks, or set train.strategy.count={processes}.",
                )
            return everyone, everyone[: self.servers]
        if self.servers >= processes:
            raise ConfigError(
                f"train.strategy.count: no process is left for a worker ({processes} launched, "
                f"{self.servers} servers).",
                cure=f"Launch as many more as there are servers, for example mpirun -np {self.servers + 2}, "
                "or set train.strategy.placement=colocated.",
            )
        return everyone[: processes - self.servers], everyone[processes - self.servers :]
