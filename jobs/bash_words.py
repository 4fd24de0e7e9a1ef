"""Quote any text as one word of a bash script: the only way in which values enter rendered scripts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

# $NAME or ${NAME}, as a site's scratch folder may hold.
_VARIABLE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})")
_LINE = 100


def quote(text: str) -> str:
    """Return `text` as one bash word that means exactly `text`, on one line, without unprintable characters.

    Control characters are written as `$'\\x0a'`: a carriage return would make Slurm refuse the script, an
    escape sequence would write to the terminal of its reader.
    """
    if text.isprintable():
        quoted = shlex.quote(text)
        # bash takes `A==b` and `(a,b)` as they are meant; readers and linters do not.
        return f"'{text}'" if quoted == text and (text[0] == "=" or "," in text) else quoted
    return "$'" + "".join(map(_ansi, text)) + "'"


def words(values: Sequence[str]) -> str:
    """Return the inside of a bash array: one line where it fits, else one line per word."""
    quoted = [quote(value) for value in values]
    line = " ".join(quoted)
    return line if len(line) <= _LINE else "\n  " + "\n  ".join(quoted) + "\n"


def expanding(text: str) -> str:
    """Quote like `quote`, but expand `$NAME` and `${NAME}` when the script runs; an unset
    variable ends it.
    """
    parts, end = [], 0
    for found in _VARIABLE.finditer(text):
        if found.start() > end:
            parts.append(quote(text[end : found.start()]))
        parts.append(f'"${{{found[1] or found[2]}:?}}"')
        end = found.end()
    if end < len(text) or not parts:
        parts.append(quote(text[end:]))
    return "".join(parts)


def _ansi(character: str) -> str:
    if character in "\\'":
        return "\\" + character
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode())
