"""The page of the form by which jobs are submitted: options of a launch, and all keys of a configuration."""

from __future__ import annotations

import json
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import annotated_types
from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from cingulum.service.pages import page
from jobs.requests.submission_options import FormField, SubmissionOptions
from jobs.schedulers import registry
from trainer.config import RunConfig
from trainer.config import fields as keys_of_config


class Field(BaseModel):
    """A key of the configuration: what it takes, and where several strategies have it, of which.

    `kind` is a type of JSON; `choices` are all values, where these are few; `minimum` and `maximum` as
    OpenAPI has them. `optional`: it may be null.
    """

    key: str
    kind: str
    description: str
    choices: list[str] = []
    minimum: float | None = None
    maximum: float | None = None
    optional: bool = False
    strategies: list[str] = []


@cache
def fields() -> tuple[Field, ...]:
    """Return a field for each key that a configuration may have, in its order."""
    schema = RunConfig.model_json_schema()
    written = {key for key, _ in keys_of_config()}
    fields_by_key: dict[str, Field] = {}
    for field in _fields(schema, "", schema["$defs"], ()):
        if field.key not in written:
            continue
        known = fields_by_key.setdefault(field.key, field)
        if known is not field:  # another strategy has it, too
            known.strategies += field.strategies
            known.choices += [one for one in field.choices if one not in known.choices]
    return tuple(fields_by_key.values())


def values(config: RunConfig) -> dict[str, str]:
    """Return the value of each key as YAML on one line."""
    tree = config.model_dump(mode="json")
    texts = {}
    for field in fields():
        node: Any = tree
        for part in field.key.split("."):
            node = node.get(part) if isinstance(node, Mapping) else None
        texts[field.key] = node if isinstance(node, str) else json.dumps(node, ensure_ascii=False)
    return texts


def _fields(
    section: Mapping[str, Any], prefix: str, defs: Mapping[str, Any], strategies: tuple[str, ...]
) -> Iterator[Field]:
    for name, described in section["properties"].items():
        node, optional = _inner(described, defs)
        key = f"{prefix}{name}"
        if "oneOf" in node:
            for branch in node["oneOf"]:
                one = _inner(branch, defs)[0]
                chosen = one["properties"]["name"].get("const")
                yield from _fields(one, f"{key}.", defs, ("own code",) if chosen is None else (chosen,))
        elif "properties" in node:
            yield from _fields(node, f"{key}.", defs, strategies)
        else:
            yield _field(key, node, described.get("description", ""), optional, strategies)


def _field(
    key: str, node: Mapping[str, Any], description: str, optional: bool, strategies: tuple[str, ...]
) -> Field:
    choices = node.get("enum") or ([node["const"]] if "const" in node else [])
    if node.get("type") == "boolean":
        choices = ["true", "false"]
    return Field(
        key=key,
        kind=node.get("type", "string"),
        description=description,
        choices=[str(one) for one in choices],
        minimum=node.get("minimum", node.get("exclusiveMinimum")),
        maximum=node.get("maximum", node.get("exclusiveMaximum")),
        optional=optional,
        strategies=list(strategies),
    )


def _inner(node: Mapping[str, Any], defs: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """Return what a reference, or a union with null, is about; and whether it may be null."""
    optional = False
    while True:
        if "$ref" in node:
            node = defs[node["$ref"].rpartition("/")[2]]
        elif "anyOf" in node:
            others = [one for one in node["anyOf"] if one.get("type") != "null"]
            optional = optional or len(others) < len(node["anyOf"])
            node = others[0]
        else:
            return node, optional


@dataclass(frozen=True)
class LaunchField:
    """One option of a submission, as the form has it.

    Attributes:
        name: of the option.
        shown: its label and hint.
        description: what it does.
        choices: pairs of value and text, where it is chosen; empty: it is typed.
        chosen: of these, the first value.
        is_switch: it is ticked.
        is_list: several, with spaces between.
        number: its bounds, where it is a number: least, and most.
        value: what it is where nothing is said.
    """

    name: str
    shown: FormField
    description: str
    choices: tuple[tuple[str, str], ...]
    chosen: str
    is_switch: bool
    is_list: bool
    number: tuple[int | None, int | None] | None
    value: Any

    @classmethod
    def of(cls, name: str, field: FieldInfo) -> LaunchField:
        """Return the field of an option."""
        shown = next(one for one in field.metadata if isinstance(one, FormField))
        kinds = (field.annotation, *typing.get_args(field.annotation))
        choices = shown.choices
        if typing.get_origin(field.annotation) is typing.Literal:
            choices = tuple((one, one) for one in typing.get_args(field.annotation))
        bounds = [
            next((getattr(one, key) for one in field.metadata if isinstance(one, kind)), None)
            for kind, key in ((annotated_types.Ge, "ge"), (annotated_types.Le, "le"))
        ]
        return cls(
            name=name,
            shown=shown,
            description=field.description or "",
            choices=choices,
            chosen=registry.preferred() if name == "launcher" else "",
            is_switch=bool in kinds,
            is_list=any(typing.get_origin(one) is tuple for one in kinds),
            number=(bounds[0], bounds[1]) if int in kinds else None,
            value=field.default if int in kinds and field.default is not None else "",
        )


def launch_fields() -> list[LaunchField]:
    """Return a field for each option of a submission, in their order."""
    return [LaunchField.of(name, field) for name, field in SubmissionOptions.model_fields.items()]


def routes() -> APIRouter:
    """Return the route of the form."""
    router = APIRouter(include_in_schema=False)

    @router.get("/submit")
    def submit_page(request: Request) -> HTMLResponse:
        """The form; `?from=ID` fills it with what a job was submitted with."""
        facts = {"launch_fields": launch_fields(), "folder": str(Path.cwd())}
        return page("submit.html.j2", request, "submit", **facts)

    return router
