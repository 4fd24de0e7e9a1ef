"""What is said of a command line that cannot be understood: in plain words, no wider than the screen."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Sequence
from typing import Any

_NUMBER = re.compile(
    r"Invalid value for '?(?P<what>[^':]+)'?: Input should be a valid (?P<kind>integer|number)"
)
_KINDS = {"integer": "a whole number", "number": "a number"}
_UNKNOWN = re.compile(
    r"No such option: (?P<what>\S+?)\.?(?: \(Possible options: (?P<near>.+)\)| Did you mean .*)?$"
)
_TOO_MANY = re.compile(r"Got unexpected extra arguments?(?:\(s\))? \((?P<what>.+)\)")


def said_of(error: Any, arguments: Sequence[str], group: Any) -> str:
    """Return the lines to show for a usage error of the command line's library.

    Args:
        error: the library's; knows its message and, mostly, its command.
        arguments: of the command line, without the program's name.
        group: the application's command, which knows the names of the others.
    """
    width = min(100, shutil.get_terminal_size().columns)
    context = getattr(error, "ctx", None)
    if context is not None:
        usage, path = context.get_usage(), context.command_path
    else:
        path = " ".join(["cingulum", *_command(arguments, group)])
        usage = f"Usage: {path} [OPTIONS] ..."
    told = textwrap.fill(
        f"Error: {_in_words(error.format_message(), arguments)}", width, break_on_hyphens=False
    )
    return f"{usage}\nTry '{path} --help' for help.\n\n{told}"


def _in_words(message: str, arguments: Sequence[str]) -> str:
    if found := _NUMBER.match(message):
        value = _value_of(found["what"].split(" / ")[0].strip(), arguments)
        given = f"'{value}'" if value is not None else "what was given"
        return f"Invalid value for '{found['what']}': {given} is not {_KINDS[found['kind']]}."
    if found := _UNKNOWN.match(message):
        near = [word for word in (found["near"] or "").split(", ") if word and word != "--help"]
        return f"No such option: {found['what']}." + (f" Did you mean {' or '.join(near)}?" if near else "")
    if found := _TOO_MANY.match(message):
        return f"Not expected here: {found['what']}."
    return message.replace("Value error, ", "")


def _value_of(option: str, arguments: Sequence[str]) -> str | None:
    """The word that was given to an option on the command line; of an argument it is not known."""
    for number, word in enumerate(arguments):
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
        if word == option and number + 1 < len(arguments):
            return arguments[number + 1]
    return None


def _command(arguments: Sequence[str], group: Any) -> list[str]:
    """The words of the command line that are the command's own, such as ['bench', 'step']."""
    names: list[str] = []
    for word in arguments:
        group = getattr(group, "commands", {}).get(word)
        if group is None:
            break
        names.append(word)
    return names
