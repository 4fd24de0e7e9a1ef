"""Every key of the configuration may change when a run goes on, or is refused by its name."""

from __future__ import annotations

import types
import typing
from typing import Any

import pytest
from pydantic import BaseModel, Field
from wording import fails_with

from trainer import config as configuration
from trainer.errors import RunError
from trainer.run_folder import resuming


# Sections that may be absent are there, so that their keys can be changed.
def stored(strategy: str) -> configuration.RunConfig:
    train = f"{{early_stopping: {{patience: 3}}, strategy: {strategy}}}"
    return configuration.parse(f"{{name: r, data: {{shards: s, patch: {{size: 8}}}}, train: {train}}}")


STORED = stored("data")
OWNERS = [
    STORED,
    *map(
        stored,
        (
            *("parameter-server", "spatial", "filters", "hybrid", "hypergraph", "auto"),
            "{name: 'own.py:Own', options: {x: 2.0}}",
        ),
    ),
]
LEAVES = [
    (key, field)
    for key, field in configuration.fields()
    if configuration.section_of(field.annotation) is None
]
MARKS = {key: configuration.on_resume(key) for key, _ in LEAVES}


def other(annotation: Any, value: Any) -> Any:
    """Another value of the same type."""
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):  # the latter of a Literal
        annotation = next(one for one in typing.get_args(annotation) if one is not type(None))
    if typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    if typing.get_origin(annotation) is typing.Literal:
        return next((choice for choice in typing.get_args(annotation) if choice != value), "other")
    kind = typing.get_origin(annotation) or annotation
    if kind in (tuple, list):
        # One fewer where there are some: sizes have three entries.
        return value[:-1] if value else kind([other(typing.get_args(annotation)[0], None)])
    if kind is dict:
        return {"x": 3.0}
    if kind is bool:
        return not value
    return (value or 0) + kind(1) if kind in (int, float) else kind("other")


def changed(section: BaseModel, key: str, value: Any) -> Any:
    """The section with one key at another value, unchecked: what goes together is not the matter here."""
    name, _, rest = key.partition(".")
    new = changed(getattr(section, name), rest, value) if rest else value
    return section.model_copy(update={name: new})


def with_other(key: str, field: Any) -> tuple[configuration.RunConfig, configuration.RunConfig]:
    """A stored configuration that has this key, and one with another value of it."""
    for config in OWNERS:
        value: Any = config
        for name in key.split("."):
            value = getattr(value, name, AttributeError)
        if value is not AttributeError:
            return config, changed(config, key, other(field.annotation, value))
    raise KeyError(key)


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # two edges where a size has three
@pytest.mark.parametrize(("key", "field"), LEAVES, ids=[key for key, _ in LEAVES])
def test_a_key_that_is_marked_may_change_and_any_other_is_refused_by_its_name(key, field):
    before, given = with_other(key, field)
    assert given != before
    if MARKS[key]:
        resuming.check_resumable(before, given)
    else:
        with pytest.raises(RunError, match=rf"configuration: {key}[ .]"):
            resuming.check_resumable(before, given)


@pytest.mark.parametrize("given", OWNERS[:2])
@pytest.mark.parametrize("before", OWNERS[:2])
def test_another_strategy_may_go_on_unless_it_rounded(before, given):
    resuming.check_resumable(before, given)
    rounding = configuration.parse("{name: r, data: {shards: s}, train: {strategy: {compression: float16}}}")
    rounding = STORED.model_copy(
        update={"train": STORED.train.model_copy(update={"strategy": rounding.train.strategy})}
    )
    with fails_with(RunError):
        resuming.check_resumable(rounding, given)


def test_options_of_a_strategy_of_ones_own_are_named_one_by_one():
    with fails_with(RunError):
        resuming.check_resumable(OWNERS[-1], STORED)


def test_what_may_grow_may_not_shrink():
    growing = [key for key, mark in MARKS.items() if mark == "may grow"]
    assert growing == ["train.epochs"]
    with fails_with(RunError):
        resuming.check_resumable(STORED, changed(STORED, "train.epochs", 79))


@pytest.mark.parametrize(
    "section",
    ["task", "model", "data.split", "data.augment", "data.patch", "train.optimizer", "train.schedule",
     "train.transfer", "train.early_stopping"],
)  # fmt: skip
def test_what_decides_the_weights_may_not_change(section):
    within = [key for key in MARKS if key.startswith(f"{section}.")]
    if section == "train.schedule":
        within.remove("train.schedule.extend")  # of epochs that are not trained yet
    assert within and not any(MARKS[key] for key in within)


class Strict(configuration.StrategySection):
    """Of a strategy whose updates no other one makes."""

    name: str = Field("strict", description="this strategy")


def test_a_key_of_two_strategies_may_change_only_if_both_say_so():
    ring, key = STORED.train.strategy, "train.strategy.name"
    assert configuration.on_resume(key, ring, ring) == configuration.on_resume(key) == "may change"
    assert configuration.on_resume(key, ring, Strict()) == configuration.on_resume(key, Strict(), ring) == ""
