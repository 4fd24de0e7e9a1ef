"""Names from a study as Markdown text: a class `A|B`, a run `*new*`, a source `<b>`, shown as they are."""

from __future__ import annotations

import re
from typing import Any

from markupsafe import Markup

# Punctuation with a meaning inside of a line (CommonMark 0.31, 2.4; tables: GitHub's extension).
_INSIDE = re.compile(r"([\\`*\[\]<>#|~&$!])")
# An underscore within a word means nothing, and is frequent in names.
_UNDERSCORE = re.compile(r"(?<![^\W_])_|_(?![^\W_])")
# What makes a list of a line.
_FIRST = re.compile(r"^([-+])(?=\s|$)|^(\d{1,9})([.)])(?=\s|$)")


def text(value: Any) -> Any:
    """A value for Markdown text, on one line; numbers, and `Markup` (Markdown already), as they are."""
    if isinstance(value, Markup | int | float):
        return value
    line = " ".join(str(value).split()) if "\n" in str(value) else str(value)
    escaped = _UNDERSCORE.sub(r"\\_", _INSIDE.sub(r"\\\1", line))
    return Markup(_FIRST.sub(lambda found: re.sub(r"([-+.)])$", r"\\\1", found.group()), escaped))  # noqa: S704


def code(value: Any) -> Markup:
    """A value as a code span, whatever backticks it has."""
    line = " ".join(str(value).split()) or " "
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    space = " " if "`" in (line[0], line[-1]) else ""
    return Markup(f"{fence}{space}{line}{space}{fence}")  # noqa: S704
