"""Three typos for every command, read as a user reads them: at 80 columns, in words, with a way on.

`CINGULUM_TYPOS=FILE pytest tests/whole/test_typos.py` writes the whole listing into FILE, to be read.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from cingulum.cli import app

LINES, COLUMNS = 24, 80
JARGON = re.compile(
    r"Traceback|pydantic|typer|click|NoneType|<class|errno|KeyError|TypeError|valid tuple|instance of|"
    r"Value ?error|Input should",
    re.IGNORECASE,
)
# The first argument is made, not read: a file is in its place.
MADE = {("phantom",): "a-file"}


def commands(group, names: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    """Every command of the application with its words, so that a new one is not forgotten."""
    for name, command in sorted(group.commands.items()):
        if hasattr(command, "commands"):
            yield from commands(command, (*names, name))
        else:
            yield (*names, name), command


EVERY = list(commands(app.command_line()))


def typos(names: tuple[str, ...], command) -> Iterator[tuple[str, list[str], str]]:
    """What was done wrong, the words after `cingulum`, and what the message must name: one of a|b."""
    arguments = [p for p in command.params if p.param_type_name == "argument" and p.required]
    options = [p for p in command.params if p.param_type_name == "option"]
    given = [f"no-such-{p.name}" for p in arguments] * (2 if names == ("compare",) else 1)
    if given and names in MADE:
        given[0] = MADE[names]
    longest = max((o for p in options for o in p.opts), key=len)
    misspelt = longest[:-1] + "x"
    yield "a misspelt option", [*names, misspelt, *given], misspelt
    if given:
        # Without a testbed, its hosts are not looked for.
        first = "testbed|--bandwidth|state" if names[0] == "testbed" else "|".join(given)
        yield "a missing path or name", [*names, *given], first
        yield "no argument", [*names], (arguments[0].metavar or arguments[0].name).strip("[]")
    else:
        more = sum(p.param_type_name == "argument" for p in command.params)
        yield "a word too much", [*names, *["known"] * more, "superfluous"], "superfluous"
    for option in options:
        kind = str(option.type_descriptor.annotation)
        if re.search(r"\b(int|float|Literal|enum)\b", kind, re.IGNORECASE):
            yield "a wrong value", [*names, option.opts[0], "tree", *given], "tree"
            return
    yield "a value for an option that takes none", [*names, "--json=tree", *given], "--json"


CASES = [
    (" ".join(words), what, words, named) for names, c in EVERY for what, words, named in typos(names, c)
]


@pytest.fixture(scope="module")
def said(tmp_path_factory) -> dict[str, tuple[int, str]]:
    """Exit code and output of each, in a folder with one file, and a store of its own."""
    folder = tmp_path_factory.mktemp("typos")
    (folder / "a-file").write_text("text\n")
    found: dict[str, tuple[int, str]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("COLUMNS", str(COLUMNS))
        for name in ("CINGULUM_HOME", "CINGULUM_SCRATCH", "XDG_DATA_HOME", "HOME"):
            patch.setenv(name, str(folder / "home"))
        patch.delenv("CINGULUM_STORE", raising=False)
        for line, _, words, _ in CASES:
            out = io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                try:
                    code = app.run(words)
                except SystemExit as ended:
                    code = int(ended.code or 0)
                except Exception:
                    code = -1
                    out.write(traceback.format_exc())
            found[line] = code, out.getvalue()
    if listing := os.environ.get("CINGULUM_TYPOS"):
        text = [
            f"$ cingulum {line}    # {what}\n{found[line][1]}[{found[line][0]}]\n"
            for line, what, _, _ in CASES
        ]
        Path(listing).write_text("\n".join(text))
    return found


@pytest.mark.parametrize(("line", "what", "words", "named"), CASES, ids=[case[0] for case in CASES])
def test_a_typo_is_answered_in_words_that_fit_the_screen(said, line, what, words, named):
    code, text = said[line]
    lines = text.splitlines()
    assert code == 2, text
    assert not JARGON.search(text), text
    assert len(lines) <= LINES and max(map(len, lines)) <= COLUMNS, text
    assert any(name.lower() in text.lower() for name in named.split("|")), text
    assert len(lines) >= 2, f"no way on: {text}"


def test_there_are_three_typos_for_every_command():
    for names, command in EVERY:
        assert len(list(typos(names, command))) >= 3, names
