"""A command's options from a model: names, bounds, lists and switches, and what the model alone refuses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from pydantic import BaseModel, Field
from wording import fails_with

from cingulum.cli.from_model import with_options
from cingulum.cli.options import options_of
from trainer.errors import InputError


@dataclass(frozen=True)
class Named:
    option: str
    metavar: str = ""


class Baking(BaseModel):
    loaves: Annotated[int, Field(ge=1, le=9, description="How many.")] = 1
    flour: Annotated[str | None, Field(max_length=5, description="Which.")] = None
    source: Annotated[str | None, Field(description="Where from."), Named("--from", "MILL")] = None
    seeds: Annotated[tuple[str, ...], Field(description="On top.")] = ()
    steam: Annotated[bool, Field(description="With steam.")] = False
    oven: str = "not asked"


BAKED: list[tuple[Baking, str]] = []


@options_of(baking=f"{__name__}:Baking")
def bake(name: Annotated[str, typer.Argument()], baking: Baking, quiet: bool = False) -> None:
    """Bake."""
    BAKED.append((baking, name))


@pytest.fixture
def command():
    BAKED.clear()
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(with_options(bake))
    return typer.main.get_command(app)


def called(command, *words: str) -> Baking:
    command.main([*words], standalone_mode=False)
    return BAKED[-1][0]


def test_what_is_not_said_is_as_the_model_has_it(command):
    assert called(command, "rye") == Baking()


def test_every_kind_of_field_is_an_option(command):
    words = "rye --loaves 3 --flour spelt --from hill --seeds oat --seeds poppy --steam"
    expected = Baking(loaves=3, flour="spelt", source="hill", seeds=("oat", "poppy"), steam=True)
    assert called(command, *words.split()) == expected
    assert "oven" not in {parameter.name for parameter in command.params}


def test_help_has_bounds_and_names_of_values(command):
    shown = command.get_help(command.make_context("bake", ["rye"]))
    assert "1<=x<=9" in shown and "--from MILL" in shown and "--no-steam" not in shown


def test_a_number_beyond_its_bounds_is_a_usage_error(command):
    with pytest.raises(typer.BadParameter) as failed:
        called(command, "rye", "--loaves", "10")
    assert "--loaves" in failed.value.format_message()


def test_what_the_model_alone_refuses_is_said_of_the_option(command):
    with fails_with(InputError) as failed:
        called(command, "rye", "--flour", "wheat and rye")
    assert failed.value.message.startswith("--flour: ")
