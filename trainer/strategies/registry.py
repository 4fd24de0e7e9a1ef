"""Every strategy by its name. A new one of ours: a section in trainer/config/strategy.py, and a line here."""

from __future__ import annotations

import importlib

from pydantic import ValidationError

from trainer.config import RunConfig, explaining
from trainer.errors import ConfigError
from trainer.strategies.base import Strategy

_OURS = {
    "data": "trainer.strategies.data_parallel:DataParallel",
    "parameter-server": "trainer.strategies.servers.synchronous:Synchronous",
    "spatial": "trainer.strategies.placed.strategy:Spatial",
    "filters": "trainer.strategies.placed.filters:Filters",
    "hybrid": "trainer.strategies.placed.hybrid:Hybrid",
    "hypergraph": "trainer.strategies.placed.hypergraph:HypergraphParallel",
    "auto": "trainer.strategies.automatic:Automatic",
    "parameter-server async": "trainer.strategies.async_servers.asynchronous:Asynchronous",
}


def of(config: RunConfig) -> Strategy:
    """Return the strategy that a configuration names.

    Raises:
        ConfigError: `train.strategy.name` names code of the user's own which is not a strategy.
        CingulumError: that code does not take the options.
    """
    if not is_ours(config):
        return _own(config.train.strategy.name, config)
    module, _, attribute = _OURS[_key(config)].partition(":")
    found: Strategy = getattr(importlib.import_module(module), attribute)(config)
    return found


def is_ours(config: RunConfig) -> bool:
    """Return whether `of` may be called before TensorFlow and MPI start; a user's file imports them."""
    return _key(config) in _OURS


def _key(config: RunConfig) -> str:
    section = config.train.strategy
    return f"{section.name} async" if section.is_asynchronous else section.name


def _own(name: str, config: RunConfig) -> Strategy:
    from trainer.models import own  # which imports Keras

    kind = own.find(name, what="strategy", error=ConfigError)
    if not (isinstance(kind, type) and issubclass(kind, Strategy)):
        raise ConfigError(
            f"train.strategy: {name} is not a strategy.",
            cure="It must be a subclass of trainer.strategies.base.Strategy: docs/how-to/own-strategy.md.",
            key="train.strategy",
        )
    options = getattr(config.train.strategy, "options", {})
    try:
        read = kind.Options.model_validate(options)
    except ValidationError as error:
        lines = [
            explaining.explain("train.strategy.options", problem, kind.Options)
            for problem in explaining.apart(error.errors())
        ]
        raise ConfigError(explaining.screenful(lines, len(lines)), key="train.strategy.options") from None
    with own.errors_with_place(name, what="strategy", error=ConfigError):
        made = kind(config)
    made.options = read
    return made
