"""What a verdict needs to know of a run besides its telemetry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainer.config.section import Remedy, StrategySection
from trainer.config.strategy import BY_NAME, DEFAULT


@dataclass(frozen=True)
class RunFacts:
    """What is known of one run.

    Attributes:
        strategy: its name, such as `data`.
        asynchronous: whether servers answer each worker on its own.
        servers: number of parameter servers; 0 without.
        colocated: whether servers run within workers.
        hosts: name of each rank's host, of workers only; empty where it is not known.
        bytes_sent: that the busiest rank sends per update, as planned; None where it is not known.
        messages_sent: the same of messages; None where the plan does not say it.
        reductions: messages of gradients per update under `data`; None where it is not known.
        batch_norms: layers of which each sends a message in a pass under `data`; None where it is not known.
        parameters: of the network; None where it is not known.
        flops: of each rank, as the plan divides the network; empty where it does not.
        config: the configuration as a tree, defaults included; empty where it is not known.
    """

    strategy: str = DEFAULT
    asynchronous: bool = False
    servers: int = 0
    colocated: bool = False
    hosts: tuple[str, ...] = ()
    bytes_sent: int | None = None
    messages_sent: int | None = None
    reductions: int | None = None
    batch_norms: int | None = None
    parameters: int | None = None
    flops: tuple[float, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def section(self) -> type[StrategySection]:
        """The class of the strategy's section; of one's own what all have in common."""
        return BY_NAME.get(self.strategy, StrategySection)

    @property
    def is_divided(self) -> bool:
        """Whether ranks compute parts of one network, and wait for each other within each pass."""
        return self.section.divides_network

    def remedies(self, remedy: Remedy) -> Iterator[tuple[dict[str, Any], str]]:
        """Yield what the strategy proposes: keys to change, and why; none where a plan says who does what."""
        if self.at("train.strategy.plan") is not None:
            return
        for changes, why in self.section.remedies.get(remedy, ()):
            # What is to be unset and is not set needs no word.
            needed = {key: value for key, value in changes.items() if (value, self.at(key)) != (None, None)}
            yield needed, why

    def name(self, rank: int) -> str:
        """Return such as 'rank 1 @ n2', or 'rank 1' where its host is unknown."""
        return f"rank {rank} @ {self.hosts[rank]}" if rank < len(self.hosts) else f"rank {rank}"

    def at(self, key: str) -> Any:
        """Return the value of a dotted key of the configuration; None where there is no such key."""
        node: Any = self.config
        for part in key.split("."):
            node = node.get(part) if isinstance(node, Mapping) else None
        return node
