"""Every strategy by its name. A new one of ours: a section in trainer/config/strategy.py, and a line here."""

from __future__ import annotations

import importlib

from pydantic import ValidationError

from trainer.config import RunConfig, explaining
from trainer.errors import ConfigError
from trainer.models import own
from trainer.strategies.base import Strategy

_OURS = {
    "data": "trainer.strategies.data_parallel:DataParallel",
    "parameter-server": "trainer.strategies.parameter_server.strategies:of_mode",
}


def of(config: RunConfig) -> Strategy:
    """The strategy that a configuration asks for.

    Raises:
        ConfigError: `train.strategy.name` names code of the user's own which is no strategy.
        CingulumError: that code does not take the options.
    """
    name = config.train.strategy.name
    if name not in _OURS:
        return _own(name, config)
    module, _, attribute = _OURS[name].partition(":")
    found: Strategy = getattr(importlib.import_module(module), attribute)(config)
    return found


def is_ours(config: RunConfig) -> bool:
    """Whether `of` may be called before TensorFlow and MPI start: a file of the user's imports them."""
    return config.train.strategy.name in _OURS


def _own(name: str, config: RunConfig) -> Strategy:
    found = own.find(name, what="strategy", error=ConfigError)
    if not (isinstance(found, type) and issubclass(found, Strategy)):
        raise ConfigError(
            f"train.strategy: {name} is no strategy.",
            cure="It must be a subclass of trainer.strategies.base.Strategy: docs/how-to/own-strategy.md.",
            key="train.strategy",
        )
    options = getattr(config.train.strategy, "options", {})
    try:
        read = found.Options.model_validate(options)
    except ValidationError as error:
        said = [
            explaining.explain("train.strategy.options", problem, found.Options)
            for problem in explaining.apart(error.errors())
        ]
        raise ConfigError(explaining.screenful(said, len(said)), key="train.strategy.options") from None
    with own.told_with_place(name, what="strategy", error=ConfigError):
        made = found(config)
    made.options = read
    return made
