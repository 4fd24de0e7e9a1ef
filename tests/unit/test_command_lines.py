"""Every `cingulum` line of README.md and docs/ is one that the command line understands.

The lines are parsed, not run: commands, options, their values, and the keys of `key=value`, those of blocks
that cannot run here among them. tests/docs/test_commands.py runs pages.
"""

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from pages import FENCE, PAGES, ROOT

from cingulum.cli.app import command_line
from trainer import config

OPERATORS = {";", "&&", "||", "|", "&", "(", ")", ">", ">>", "<", "2>", "do", "then", "else", "{", "}", "!"}
WITH_KEYS = {"train", "submit", "crossval", "plan", "profile", "simulate", "advise"}


def command_lines(page: Path) -> Iterator[list[str]]:
    """The words after each `cingulum` of a page's ```sh blocks."""
    for match in FENCE.finditer(page.read_text()):
        if match["language"] == "sh":
            yield from calls(match["body"])


def calls(script: str) -> Iterator[list[str]]:
    """The words after each `cingulum` of a shell script, up to the end of its simple command."""
    for line in script.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] | None = None
        before = ""
        for token in lexer:
            if token in OPERATORS:
                if words is not None:
                    yield words
                words = None
            elif Path(token).name == "cingulum":  # the last one counts: images have that name, too
                words = None if before in ("-t", "--tag") else []
            elif words is not None:
                words.append(token)
            before = token
        if words is not None:
            yield words


def parse(words: list[str]) -> None:
    """Parse as `cingulum` would, without running anything.

    Raises:
        typer.BadParameter, and others of `format_message`: the line is not understood.
        typer.Exit: it asks for help.
    """
    command, name, rest = command_line(), "cingulum", list(words)
    while hasattr(command, "resolve_command"):  # a group; typer hides the class
        context = command.make_context(name, rest)
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
    with command.make_context(name, rest) as context:
        if name in WITH_KEYS:
            check_keys(context.params)


def refusal(words: list[str]) -> str:
    """What the command line has against these words; nothing where it understands them."""
    try:
        parse(words)
    except typer.Exit as ended:  # --help
        return f"exit code {ended.exit_code}" if ended.exit_code else ""
    except Exception as error:
        if hasattr(error, "format_message"):
            return error.format_message()
        raise
    return ""


def check_keys(params: dict) -> None:
    fields = dict(config.fields())
    for values in params.values():
        for value in values if isinstance(values, (list, tuple)) else ():
            key = str(value).split("=")[0]
            table = key.rpartition(".")[0]  # model.options.dropout is an entry of model.options
            if "=" in str(value) and key not in fields and str(fields.get(table)).find("dict") < 0:
                raise typer.BadParameter(f"there is no key {key}")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_command_line_of_a_page_is_understood(page):
    for words in command_lines(page):
        assert not refusal(words), f"{page.relative_to(ROOT)}: cingulum {shlex.join(words)}"


def test_the_pages_hold_many_command_lines():
    assert sum(1 for page in PAGES for _ in command_lines(page)) > 150


@pytest.mark.parametrize(
    "line",
    [
        "cingulum trian run.yaml",
        "cingulum train run.yaml --resum",
        "cd there && cingulum submit run.yaml --nodes two",
        "mpirun -np 2 cingulum train run.yaml train.epoch=3",
        "for n in 1 2; do cingulum bench rign; done",
    ],
)
def test_a_wrong_line_is_noticed(line):
    assert [refusal(words) for words in calls(line)] != [""]
