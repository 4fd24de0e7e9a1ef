"""Folders of jobs: one private folder per user, and one in it per submission."""

from __future__ import annotations

import os
import re
import secrets
import stat
from pathlib import Path

from trainer.errors import JobError

TOKEN = re.compile(r"[0-9a-f]{16}")


def home() -> Path:
    """Return `$CINGULUM_HOME`, else `$XDG_DATA_HOME/cingulum`, else `~/.local/share/cingulum`; made with mode
    0700.

    Raises:
        JobError: it cannot be made, is no folder, or other users may write to it.
    """
    folder = _named()
    try:
        if not folder.is_dir():
            folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        raise JobError(
            f"The folder for jobs, {folder}, cannot be used: {error.strerror or error}.",
            cure="Set CINGULUM_HOME to a folder that you may write to and that all hosts of a job see.",
        ) from error
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise JobError(
            f"The folder for jobs, {folder}, is not yours alone: others could change what your jobs run.",
            cure="Run `chmod go-w` on it, or set CINGULUM_HOME to a folder of your own.",
        )
    return folder


def new_token() -> str:
    """Return 16 random hex digits: the permanent name of one submission."""
    return secrets.token_hex(8)


def job_path(token: str) -> Path:
    """Return the folder of this submission, whether or not it exists.

    Raises:
        JobError: not a token, or what `home` raises.
    """
    if not TOKEN.fullmatch(token):
        raise JobError(f"{token!r} is not the token of a job.", cure="A token is 16 hex digits.")
    return home() / "jobs" / token


def planned_path(token: str) -> Path:
    """Return what `job_path` will return, without making anything."""
    return _named() / "jobs" / token


def job_folder(token: str) -> Path:
    """Make and return the folder of this submission, with mode 0700; raises what `job_path` does."""
    folder = job_path(token)
    try:
        for part in (folder.parent, folder):
            part.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise JobError(f"The job's folder {folder} cannot be made: {error.strerror or error}.") from error
    return folder


def _named() -> Path:
    given = os.environ.get("CINGULUM_HOME")
    if given:
        return Path(given).expanduser().absolute()
    data = os.environ.get("XDG_DATA_HOME")
    # The specification of base directories: a relative path there is to be ignored.
    if data and Path(data).is_absolute():
        return Path(data) / "cingulum"
    return Path.home() / ".local" / "share" / "cingulum"
