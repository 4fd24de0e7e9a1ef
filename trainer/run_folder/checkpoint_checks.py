"""Whether a folder is a whole checkpoint of this run, found out without running anything that is in it.

What lies in `checkpoints/` may be damaged, cut short, or put there by somebody: nothing is opened that is not
a plain file, nothing is read that is larger than it may be, and what is wrong becomes one short sentence.
"""

from __future__ import annotations

import hashlib
import json
import re
import stat
from pathlib import Path
from typing import Any

FORMAT_VERSION = 3
MANIFEST = "manifest.json"
# Without one of these there is nothing to go on from.
REQUIRED = ("cursor.json", "model.keras", "optimizer.npz", "rng.npz")
# Used where it is there, so it must not be there unverified.
AVERAGED = "averaged.keras"

# A manifest has some 150 bytes per file.
_LARGEST_MANIFEST = 2**16
_NAME = re.compile(r"step-([0-9]{8,18})")
_FILE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}")
# Numbers of a cursor, and the smallest that each may be.
_COUNTS = {"step": 0, "steps_per_epoch": 1, "waited": 0, "world_size": 1}


def step_of(path: Path) -> int | None:
    """Return the step in a checkpoint's name; None for a name that is not a checkpoint's."""
    named = _NAME.fullmatch(path.name)
    if named is None or (named[1][0] == "0" and len(named[1]) > 8):
        return None
    return int(named[1])


def check(path: Path, run: str | None = None) -> str | None:
    """Return what is wrong with a checkpoint, in words; None if it is whole, and this run's own.

    Args:
        path: of the checkpoint.
        run: identity of the run that wants to go on from it, `id` in run.json; None: any, or lost.
    """
    try:
        if not stat.S_ISDIR(path.lstat().st_mode):
            return "is a link or a file, not a folder"
        manifest = _read_json(path / MANIFEST, _LARGEST_MANIFEST)
        return (
            _manifest_problem(manifest)
            or _owner_problem(manifest, run)
            or _files_problem(path, manifest["files"])
            or _cursor_problem(path)
        )
    except _Problem as problem:
        return str(problem)
    except OSError as error:
        return f"it cannot be read ({error.strerror})"


def run_of(path: Path) -> str:
    """Return the identity of the run that wrote a checkpoint that passed `check`."""
    return str(_read_json(path / MANIFEST, _LARGEST_MANIFEST).get("run", ""))


def fingerprint(path: Path) -> dict[str, Any]:
    """Return size and sha256 of a file."""
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
        return {"bytes": file.tell(), "sha256": digest.hexdigest()}


class _Problem(Exception):
    """What is wrong, found deep inside."""


def _read_json(path: Path, largest: int | None = None) -> dict[str, Any]:
    size = _plain_size(path)
    if largest is not None and size > largest:
        raise _Problem(f"{path.name} has {size} bytes, more than the {largest} that one can have")
    try:
        value = json.loads(path.read_bytes())
    except RecursionError:
        raise _Problem(f"{path.name} cannot be read (nested too deeply)") from None
    except ValueError as error:
        raise _Problem(f"{path.name} cannot be read ({_short(error)})") from None
    if not isinstance(value, dict):
        raise _Problem(f"{path.name} cannot be read (not a JSON object)")
    return value


def _plain_size(path: Path) -> int:
    """The size of a plain file, without opening it: a fifo would wait for somebody to write."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        raise _Problem(f"{path.name} is missing") from None
    except OSError as error:
        raise _Problem(f"{path.name} cannot be read ({error.strerror})") from None
    if not stat.S_ISREG(status.st_mode):
        raise _Problem(f"{path.name} is not a plain file")
    return status.st_size


def _manifest_problem(manifest: dict[str, Any]) -> str | None:
    version, files = manifest.get("format"), manifest.get("files")
    if version != FORMAT_VERSION:
        return f"its format is {_short(version)}, this version of cingulum knows {FORMAT_VERSION}"
    if not isinstance(files, dict):
        return f"{MANIFEST} lists no files"
    for name, expected in files.items():
        if not _FILE.fullmatch(name) or name == MANIFEST:
            return f"{MANIFEST} lists {_short(name)}, which is not a valid file name in a checkpoint"
        if not isinstance(expected, dict) or expected.keys() != {"bytes", "sha256"}:
            return f"{MANIFEST} lacks size and checksum of {name}"
    missing = [name for name in REQUIRED if name not in files]
    return f"{MANIFEST} does not list {', '.join(missing)}" if missing else None


def _owner_problem(manifest: dict[str, Any], run: str | None) -> str | None:
    wrote = manifest.get("run", "")
    if run is None or wrote == run:
        return None
    return f"another run wrote it (its run id is {_short(wrote)}, this run's: {run})"


def _files_problem(path: Path, files: dict[str, Any]) -> str | None:
    if AVERAGED not in files and (path / AVERAGED).exists():
        return f"{MANIFEST} does not list {AVERAGED}"
    for name, expected in files.items():
        size = _plain_size(path / name)
        if size != expected["bytes"]:
            return f"{name} has {size} bytes instead of {_short(expected['bytes'])}"
        try:
            if fingerprint(path / name) != expected:
                return f"{name} does not match its checksum"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
    return None


def _cursor_problem(path: Path) -> str | None:
    cursor = _read_json(path / "cursor.json")
    for key, least in _COUNTS.items():
        value = cursor.get(key, least)
        if type(value) is not int or value < least:
            return f"cursor.json: {key} is {_short(value)}"
    if not isinstance(cursor.get("rows"), list) or not all(isinstance(row, dict) for row in cursor["rows"]):
        return "cursor.json: rows is not a list of epochs"
    if cursor.get("step") != step_of(path):
        return f"its name is not of its step, {_short(cursor.get('step'))}"
    return None


def _short(value: object) -> str:
    text = str(value) if isinstance(value, (Exception, int)) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
