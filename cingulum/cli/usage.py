"""What is said of a command line that cannot be understood: in plain words, no wider than the screen."""

from __future__ import annotations

import difflib
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
    if match := _NUMBER.match(message):
        value = _value_of(match["what"].split(" / ")[0].strip(), arguments)
        given = f"'{value}'" if value is not None else "what was given"
        return f"Invalid value for '{match['what']}': {given} is not {_KINDS[match['kind']]}."
    if match := _UNKNOWN.match(message):
        near = [word for word in (match["near"] or "").split(", ") if word and word != "--help"]
        return f"No such option: {match['what']}." + (f" Did you mean {' or '.join(near)}?" if near else "")
    if match := _TOO_MANY.match(message):
        return f"Not expected here: {match['what']}."
    return message.replace("Value error, ", "")


def _value_of(option: str, arguments: Sequence[str]) -> str | None:
    """Return the word given to an option on the command line; None for an argument."""
    for number, word in enumerate(arguments):
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
        if word == option and number + 1 < len(arguments):
            return arguments[number + 1]
    return None


def _command(arguments: Sequence[str], group: Any) -> list[str]:
    """Return the words that name the command, such as ['bench', 'step']."""
    names: list[str] = []
    for word in arguments:
        group = getattr(group, "commands", {}).get(word)
        if group is None:
            break
        names.append(word)
    return names


# How other programs name them.
_ALSO = {"lr": "learning_rate", "batch": "global_batch", "batch_size": "global_batch", "model": "model.name"}
_MOST = 5


def advice(option: str, arguments: Sequence[str]) -> str | None:
    """Return what to write instead of an unknown option; None where no key is like it.

    Args:
        option: as it was written, such as `--epochs`.
        arguments: of the whole command line, for the option's value.
    """
    candidates = keys(option)
    if not candidates:
        return None
    value = _value(option, arguments)
    settings = [f"{key}={value}" for key in candidates[:_MOST]]
    if len(settings) == 1:
        return f"{option} is a key of the configuration: write {settings[0]}"
    more = f" and {len(candidates) - _MOST} more" if len(candidates) > _MOST else ""
    return f"{option} may be one of these keys of the configuration: write {', '.join(settings)}{more}"


def keys(option: str) -> list[str]:
    """Return keys whose last part is the option's name; else those whose last part is
    spelled much like it.
    """
    from trainer import config

    query = option.lstrip("-").replace("-", "_")
    if len(query) < 2:
        return []
    query = _ALSO.get(query, query)
    leaves = [key for key, field in config.fields() if config.section_of(field.annotation) is None]
    same = [key for key in leaves if key == query or key.rpartition(".")[2] == query]
    if same:
        return same
    last = sorted({key.rpartition(".")[2] for key in leaves})
    close = difflib.get_close_matches(query.rpartition(".")[2], last, n=1, cutoff=0.75)
    return [key for key in leaves if close and key.rpartition(".")[2] == close[0]]


def _value(option: str, arguments: Sequence[str]) -> str:
    """Return the value given with the option; true where there was none, as for a switch."""
    for number, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == option:
            after = arguments[number + 1] if number + 1 < len(arguments) else "-"
            return value if equals else "true" if after.startswith("-") or "=" in after else after
    return "true"
