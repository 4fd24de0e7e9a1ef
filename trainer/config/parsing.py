"""From a YAML file and `key=value` overrides to a RunConfig, and back."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from trainer.config.run import RunConfig
from trainer.errors import ConfigError


def load(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a YAML file and apply `a.b=value` overrides.

    Raises:
        ConfigError: the file is missing or no YAML mapping, a key is unknown, a value is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file.", cure="An example: examples/demo.yaml") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        cure = "Name a YAML file, such as examples/demo.yaml"
        raise ConfigError(f"{path}: cannot be read as a text file ({reason}).", cure=cure) from None
    return parse(text, overrides, source=str(path))


def parse(text: str, overrides: Sequence[str] = (), *, source: str = "configuration") -> RunConfig:
    """Like `load`, from text; `source` names it in errors."""
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(tree, dict):
        raise ConfigError(
            f"{source}: holds no keys.", cure="It starts with `name: my-run`; see examples/demo.yaml."
        )
    for override in overrides:
        _apply_override(tree, override)
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as error:
        raise ConfigError("\n".join(explain(source, problem) for problem in error.errors())) from None


def dump(config: RunConfig) -> str:
    """The whole configuration, defaults included, as YAML that `parse` reads back to an equal value."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def fields(section: type[BaseModel] = RunConfig, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every dotted key with its pydantic field, in order: for suggestions and for the reference page."""
    for name, field in section.model_fields.items():
        nested = section_of(field.annotation)
        yield prefix + name, field
        if nested is not None:
            yield from fields(nested, f"{prefix}{name}.")


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The Section that an annotation such as `X` or `X | None` holds."""
    members = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    return next((m for m in members if isinstance(m, type) and issubclass(m, BaseModel)), None)


def _apply_override(tree: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(
            f"override {override!r}: is not of the form key=value.", cure="For example: train.epochs=3"
        )
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"override {override!r}: the value is not YAML.") from None
    *parents, last = key.split(".")
    node = tree
    for parent in parents:
        child = node.setdefault(parent, {})
        if child is None:
            child = node[parent] = {}
        if not isinstance(child, dict):
            raise ConfigError(
                f"override {override!r}: {parent!r} is a single value and has no keys of its own."
            )
        node = child
    node[last] = value


def explain(source: str, problem: Any, section: type[BaseModel] = RunConfig) -> str:
    """One of pydantic's errors about a `section`, in a sentence that names the key, and one like it."""
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        known = [key for key, _ in fields(section)]
        # The last word is what was mistyped; a right word in a wrong place is found by its full name.
        close = difflib.get_close_matches(where, known, n=1, cutoff=0.6) or [
            key for key in known if key.rsplit(".", 1)[-1] == where.rsplit(".", 1)[-1]
        ]
        hint = f" Did you mean {close[0]!r}?" if close else ""
        return f"{source}: unknown key {where!r}.{hint}"
    if problem["type"] == "missing":
        return f"{source}: {where!r} is missing: it must be given."
    what = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "string_pattern_mismatch":
        what = "Must be letters, digits, '.', '_' and '-', starting with a letter or a digit"
    given = "" if isinstance(problem["input"], dict) else f", not {problem['input']!r}"
    return f"{source}: {f'{where}: ' if where else ''}{what}{given}."
