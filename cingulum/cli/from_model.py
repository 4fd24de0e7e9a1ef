"""Options of a command from a model: each field is an option, checked and described as the model says."""

from __future__ import annotations

import functools
import importlib
import inspect
import typing
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import annotated_types
import typer
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from trainer.errors import InputError


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that `options.options_of` has marked, with the options of its models.

    Of the fields' metadata `option` and `metavar` count, where something has these attributes. A field
    without a description is no option.
    """
    models = {name: _model(place) for name, place in command.models.items()}  # type: ignore[attr-defined]
    known = {model.__name__: model for model in models.values()}
    hints = typing.get_type_hints(command, localns=known, include_extras=True)
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in models:
            parameters += _parameters(models[name])
        else:
            parameters.append(parameter.replace(annotation=hints[name], kind=parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def called(**values: Any) -> None:
        for name, model in models.items():
            given = {field: values.pop(field) for field, _ in _fields(model)}
            values[name] = _made(model, {field: one for field, one in given.items() if one is not None})
        command(**values)

    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {one.name: one.annotation for one in parameters}
    return called


def words_of(options: BaseModel) -> list[str]:
    """Return the words of a command line that say these options, without those that are as they were."""
    words: list[str] = []
    for name, field in _fields(type(options)):
        value, option = getattr(options, name), _option(name, field)
        if value == field.default:
            continue
        several = value if isinstance(value, tuple) else (value,)
        words += [option] if value is True else [word for one in several for word in (option, str(one))]
    return words


def _model(place: str) -> type[BaseModel]:
    module, _, name = place.partition(":")
    model: type[BaseModel] = getattr(importlib.import_module(module), name)
    return model


def _fields(model: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    return ((name, field) for name, field in model.model_fields.items() if field.description)


def _parameters(model: type[BaseModel]) -> Iterator[inspect.Parameter]:
    plain = typing.get_type_hints(model)  # without what is annotated within
    for name, field in _fields(model):
        default, kind = field.default, plain[name]
        if _is_list(kind):
            kind, default = list[str] | None, None
        option = typer.Option(
            _option(name, field),
            help=field.description,
            metavar=_shown(field, "metavar") or None,
            min=_bound(field, annotated_types.Ge, "ge"),
            max=_bound(field, annotated_types.Le, "le"),
            show_default=default is not None,
        )
        yield inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
        )


def _option(name: str, field: FieldInfo) -> str:
    return _shown(field, "option") or f"--{name.replace('_', '-')}"


def _shown(field: FieldInfo, attribute: str) -> str:
    return next((getattr(one, attribute) for one in field.metadata if hasattr(one, attribute)), "")


def _bound(field: FieldInfo, kind: Any, attribute: str) -> float | None:
    return next((getattr(one, attribute) for one in field.metadata if isinstance(one, kind)), None)


def _is_list(kind: Any) -> bool:
    """Whether a type is one of several values, perhaps or none at all."""
    return any(typing.get_origin(one) in (list, tuple) for one in (kind, *typing.get_args(kind)))


def _made(model: type[BaseModel], values: dict[str, Any]) -> BaseModel:
    try:
        return model(**values)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        raise InputError(
            f"{_option(name, model.model_fields[name])}: {first['msg'].removeprefix('Value error, ')}.",
            cure="See the command's --help.",
        ) from None
