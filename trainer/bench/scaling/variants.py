"""A strategy with its options, as a word of the command line and as words for people. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

from trainer.config.strategy import BY_NAME, DIVIDING, SIMULATED
from trainer.errors import InputError


@dataclasses.dataclass(frozen=True)
class OtherSystem:
    """A system that a study compares with: its steps are timed, and it is not trained.

    Attributes:
        title: in words.
        has_servers: whether it has parameter servers.
        check: of a `Cell`; raises InputError where it cannot do that.
        measure: of a cell, a testbed or None, `progress`, `count` of interfaces; returns a `MeasuredCell`.
    """

    title: str
    has_servers: bool
    check: Callable[..., Any]
    measure: Callable[..., Any]


# By the word that names it; what compares with others adds them (benchmarks/beside_peers.py).
OTHERS: dict[str, OtherSystem] = {}


def title(strategy: str, options: Mapping[str, Any], servers: int | str) -> str:
    """Return a strategy in words.

    Args:
        strategy: one of `SIMULATED` or `OTHERS`.
        options: see `Cell`.
        servers: how many; "n" for as many as ranks.
    """
    words = [OTHERS[strategy].title if strategy in OTHERS else strategy]
    if servers:
        words.append(f"k = {servers}")
    words += [str(value) if isinstance(value, str) else f"{name} {value}" for name, value in options.items()]
    return ", ".join(words)


def section(strategy: str, options: Mapping[str, Any], servers: int) -> dict[str, Any]:
    """Return the keys of `train.strategy` that select a strategy of ours; arguments as of `title`."""
    count = {"count": servers} if BY_NAME[strategy].has_servers else {}
    return {"name": strategy, **count, **options}


@dataclasses.dataclass(frozen=True)
class Variant:
    """A strategy with its options, as one word of the command line says it.

    Attributes:
        strategy: one of `SIMULATED` or `OTHERS`.
        options: see `Cell`.
        servers: how many there are; 0: as many as ranks.
    """

    strategy: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    servers: int = 1

    @property
    def has_servers(self) -> bool:
        """Whether there are parameter servers at all."""
        other = OTHERS.get(self.strategy)
        return BY_NAME[self.strategy].has_servers if other is None else other.has_servers

    @property
    def can_be_timed(self) -> bool:
        """Whether its steps can be timed: asynchronous workers do not step together, and of networks that are
        divided `cingulum bench placement` times them.
        """
        return self.options.get("mode") != "async" and self.strategy not in DIVIDING

    @property
    def can_train(self) -> bool:
        """Whether `cingulum train` knows it."""
        return self.strategy not in OTHERS

    @property
    def title(self) -> str:
        """In words."""
        return title(self.strategy, self.options, (self.servers or "n") if self.has_servers else 0)

    def servers_for(self, ranks: int) -> int:
        """Return the number of servers beside `ranks` ranks."""
        return (self.servers or ranks) if self.has_servers else 0


def variant(word: str) -> Variant:
    """Return the strategy that a word names: `NAME` or `NAME/OPTION=VALUE/...`, e.g. `data/algorithm=tree` or
    `parameter-server/servers=n/placement=colocated`; `n` is the number of ranks.

    Raises:
        InputError: no such strategy, or an option without a value.
    """
    strategy, *words = word.split("/")
    known = (*SIMULATED, *OTHERS)
    if strategy not in known:
        raise InputError(f"--strategies: unknown strategy {strategy!r}.", cure=f"Take {', '.join(known)}.")
    options: dict[str, Any] = {}
    for one in words:
        name, equals, value = one.partition("=")
        if not (name and equals and value):
            raise InputError(f"--strategies: {one!r} in {word!r} is not OPTION=VALUE.")
        options[name] = _value(value)
    servers = options.pop("servers", 1)
    if servers == "n":
        servers = 0
    elif not isinstance(servers, int) or isinstance(servers, bool) or servers < 1:
        raise InputError(f"--strategies: servers={servers} in {word!r} must be a number from 1 up, or n.")
    return Variant(strategy, options, servers)


def _value(word: str) -> Any:
    """Return true, false, a number, or the word itself."""
    try:
        value = json.loads(word)
    except ValueError:
        return word
    return value if isinstance(value, (bool, int, float)) else word
