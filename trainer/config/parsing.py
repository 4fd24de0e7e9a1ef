"""From a YAML file and `key=value` overrides to a RunConfig, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from trainer.config import explaining, yaml_reader
from trainer.config.explaining import COMMAND_LINE, STRATEGY, Place
from trainer.config.run import RunConfig
from trainer.config.yaml_reader import Document
from trainer.errors import ConfigError


def load(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a YAML file and apply `a.b=value` overrides.

    Raises:
        ConfigError: the file is missing or no YAML mapping, a key is unknown, a value is wrong.
    """
    return _made(yaml_reader.read(path), overrides, str(path), path)


def parse(text: str, overrides: Sequence[str] = (), *, source: str = "configuration") -> RunConfig:
    """Read a configuration as `load` does, from text; `source` names it in errors."""
    return _made(yaml_reader.parse(text, source=source), overrides, source)


def dump(config: RunConfig) -> str:
    """Return the whole configuration, defaults included, as YAML that `parse` reads back
    to an equal value.
    """
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def _made(document: Document, overrides: Sequence[str], source: str, path: Path | None = None) -> RunConfig:
    if not isinstance(document.tree, dict):
        raise ConfigError(
            f"{source}: holds no keys.",
            cure="It starts with `name: my-run`; see examples/demo.yaml.",
            path=path,
        )
    tree = _own(document.tree)
    written = dict(document.written)
    changes: dict[Place, str] = {}
    for override in overrides:
        _apply_override(tree, written, changes, override)
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as error:
        problems = explaining.apart(error.errors())
    of_file = _problems(document.tree) if changes else set()

    def sentences() -> Iterator[str]:
        for problem in problems:
            change = _change(problem, changes, of_file)
            blamed = f"{COMMAND_LINE}: {explaining.cut(change)}" if change else source
            is_named = problem["loc"] in changes
            yield explaining.explain(blamed, problem, RunConfig, written, is_named=is_named)

    raise ConfigError(
        explaining.screenful(sentences(), len(problems)),
        path=None if _change(problems[0], changes, of_file) else path,
        key=explaining.named(problems[0]["loc"]) or None,
    )


def _problems(tree: Any) -> set[tuple[Place, str]]:
    """Where a file alone would be refused, and with what words."""
    try:
        RunConfig.model_validate(tree)
    except ValidationError as error:
        return {(problem["loc"], problem["msg"]) for problem in map(explaining.plain, error.errors())}
    return set()


def _change(problem: Any, changes: Mapping[Place, str], of_file: set[tuple[Place, str]]) -> str:
    """The override that a problem comes from, as it was given; nothing where it is the file's."""
    place = problem["loc"]
    inside = [text for key, text in changes.items() if place[: len(key)] == key]
    if inside:
        return inside[-1]
    if (place, problem["msg"]) in of_file:
        return ""
    # What does not go together: of a section, where one of its keys was changed.
    beneath = [text for key, text in changes.items() if key[: len(place)] == place]
    return " ".join(beneath)


def _own(tree: Any) -> Any:
    """A copy in which what aliases repeat is there several times, so that each can be changed by itself."""
    if isinstance(tree, dict):
        return {key: _own(value) for key, value in tree.items()}
    return [_own(value) for value in tree] if isinstance(tree, list) else tree


def _apply_override(
    tree: dict[str, Any], written: dict[Place, str], changes: dict[Place, str], override: str
) -> None:
    key, equals, text = override.partition("=")
    source = f"{COMMAND_LINE}: {explaining.cut(override)}"
    if not equals or not key:
        raise ConfigError(
            f"{source}: is not of the form key=value.", cure="For example: train.epochs=3", key=key or None
        )
    document = yaml_reader.parse(text, source=source)
    place = tuple(key.split("."))
    if len(place) > yaml_reader.MOST_DEPTH:
        raise ConfigError(f"{source}: a key has at most {yaml_reader.MOST_DEPTH} parts.", key=key)
    node = tree
    for depth, parent in enumerate(place[:-1]):
        child = node.setdefault(parent, {})
        if isinstance(child, str) and place[: depth + 1] == STRATEGY:
            child = node[parent] = {"name": child}
        if child is None:
            child = node[parent] = {}
        if not isinstance(child, dict):
            raise ConfigError(f"{source}: {parent!r} is a single value and has no keys of its own.", key=key)
        node = child
    node[place[-1]] = _own(document.tree)
    _forget_other_spelling(tree, place)
    changes[place] = override
    for old in [old for old in written if old[: len(place)] == place]:
        del written[old]
    written.update({(*place, *within): word for within, word in document.written.items()})


def _forget_other_spelling(tree: dict[str, Any], place: Place) -> None:
    """Drop what the file says under the other name of `train.strategy.plan`: the command line wins."""
    train = tree.get("train")
    if not isinstance(train, dict):
        return
    if place == ("train", "strategy", "plan"):
        train.pop("plan", None)
    if place == ("train", "plan") and isinstance(train.get("strategy"), dict):
        train["strategy"].pop("plan", None)
