"""The page of the form by which jobs are submitted."""

from __future__ import annotations

import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import annotated_types
from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from pydantic.fields import FieldInfo

from cingulum.service.pages import page
from jobs.schedulers import registry
from jobs.submission_options import FormField, SubmissionOptions


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
