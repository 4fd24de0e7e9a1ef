"""A unit of the user's systemd that keeps the service running, also after its user has logged out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from jobs.schedulers import registry
from trainer import atomic
from trainer.errors import InputError

NAME = "cingulum-serve.service"
_MARK = "# Made by `cingulum serve --install`; the next one replaces it."
# What the service's commands need of the environment. CINGULUM_STORE may hold a password: it is not written.
_PASSED = ("PATH", "CINGULUM_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "LD_LIBRARY_PATH")


def passed() -> tuple[str, ...]:
    """Return the variables that the service is given, those of schedulers among them."""
    return (*_PASSED, *(name for one in registry.every_scheduler() for name in one.variables))


def text(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> str:
    """Return the unit that runs a command in a folder with these variables."""
    pairs = (f"{name}={value}" for name, value in environment.items())
    variables = "".join(f"Environment={_quoted(pair)}\n" for pair in pairs)
    # Only there `$` begins a variable.
    line = " ".join(_quoted(word.replace("$", "$$")) for word in command)
    return f"""{_MARK}
[Unit]
Description=Cingulum: jobs and runs in a browser

[Service]
ExecStart={line}
WorkingDirectory={_escaped(str(folder))}
{variables}UMask=0077
Restart=on-failure
RestartSec=5

[Install]
WantedBy=default.target
"""


def folder() -> Path:
    """Return where systemd looks for the user's units."""
    given = os.environ.get("XDG_CONFIG_HOME")
    config = Path(given) if given and Path(given).is_absolute() else Path.home() / ".config"
    return config / "systemd" / "user"


def install(content: str) -> Path:
    """Write the unit, in place of an earlier one of ours, and return its path; nothing is started.

    Raises:
        InputError: there is a unit of this name that somebody else wrote.
    """
    path = folder() / NAME
    try:
        is_ours = path.read_text(encoding="utf-8", errors="replace").startswith(_MARK)
    except FileNotFoundError:
        is_ours = True
    if not is_ours:
        raise InputError(f"{path}: is there, and is not ours.", cure="Rename or remove it.", path=path)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_private(path, content)
    return path


def _quoted(word: str) -> str:
    """Return a word as systemd reads it back (man systemd.service, "Command lines")."""
    if "\n" in word or "\r" in word:
        raise InputError(
            f"{word!r}: a unit cannot hold the end of a line.", cure="Use another path or value."
        )
    inside = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{_escaped(inside)}"'


def _escaped(word: str) -> str:
    return word.replace("%", "%%")
