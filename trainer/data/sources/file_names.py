"""File names that are not UTF-8: Python keeps their bytes as surrogates, which our files cannot hold."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def is_text(name: str | Path) -> bool:
    """Return whether a name can be written as UTF-8."""
    try:
        str(name).encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(name: str | Path) -> str:
    r"""Return the name as text: bytes that are not UTF-8 as `\xff`."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def first_three(names: Iterable[str]) -> str:
    """Return at most three names, separated by commas, with `...` where there are more."""
    listed = [shown(name) for name in names]
    return ", ".join(listed[:3]) + (", ..." if len(listed) > 3 else "")
