"""State of an import in its target, so that it can be stopped at any moment and resumed.

While it runs, `TARGET/.import/` holds `request.json` and, for every whole shard, the records of the images
that went into it or were left out before it. `import.json` stays and says how the set was made.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from trainer.data.importing.examination import Examined, stamp
from trainer.data.shards import codecs, regular_files
from trainer.data.shards.index import INDEX_NAME, canonical_json
from trainer.data.shards.shard_writer import unwritten, write_atomically
from trainer.data.shards.shards import ShardSet
from trainer.data.sources.file_names import is_text, shown
from trainer.data.sources.listing import SourceImage
from trainer.errors import ShardError

WORK_NAME = ".import"
STORY_NAME = "import.json"
CHOICE_NAME = "codec.json"
# Of each JSON file of an import: docs/decisions/0038-strangers.md.
MOST_BYTES = 1 << 28
TABLES = ("qc.csv", "qc.json", "qc.html")


def is_finished(target: Path, request: dict[str, Any], listing_sha256: str) -> bool:
    """Return whether the target already holds the whole set that this request makes.

    Raises:
        ShardError: it holds a set or the beginnings of one made otherwise, or files that are not ours.
    """
    if target.exists() and not target.is_dir():
        raise ShardError(
            f"{target}: is a file, but a shard set is a folder.", cure="Name another folder.", path=target
        )
    if (target / INDEX_NAME).exists():
        ShardSet.open(target)
        story = _read(target / STORY_NAME)
        _compare(target, "was imported", story.get("request", {}), request)
        if story.get("listing_sha256") != listing_sha256:
            raise ShardError(
                f"{target}: holds a shard set made from another list of images or labels.",
                cure="Import into another folder, or add --overwrite to replace it.",
                path=target,
            )
        return True
    if (target / WORK_NAME / "request.json").exists():
        _compare(
            target, "holds an unfinished import, begun", _read(target / WORK_NAME / "request.json"), request
        )
    elif target.is_dir() and any(entry.name != WORK_NAME for entry in target.iterdir()):
        raise _of_something_else(target)
    return False


def _of_something_else(target: Path) -> ShardError:
    message = f"{target}: is not empty and does not hold a shard set."
    return ShardError(message, cure="Name a new or empty folder.", path=target)


def _compare(target: Path, what: str, had: dict[str, Any], wanted: dict[str, Any]) -> None:
    flat, new = _flat(had), _flat(wanted)
    differing = [key for key in sorted({*flat, *new}) if flat.get(key) != new.get(key)]
    if differing:
        changes = ", ".join(f"{key} {flat.get(key)!r} (now {new.get(key)!r})" for key in differing)
        raise ShardError(
            f"{target}: {what} with other parameters: {changes}.",
            cure="Use the same parameters, import into another folder, or add --overwrite to start again.",
            path=target,
        )


def _flat(tree: dict[str, Any]) -> dict[str, Any]:
    """Flatten a dictionary, with the recipe's entries beside the others."""
    return {**{key: value for key, value in tree.items() if key != "recipe"}, **tree.get("recipe", {})}


def _read(path: Path) -> dict[str, Any]:
    try:
        tree = json.loads(regular_files.read(path, MOST_BYTES).decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        cure = "Import into another folder, or add --overwrite to start again."
        raise ShardError(f"{path}: cannot be read ({error}).", cure=cure, path=path) from None
    return tree if isinstance(tree, dict) else {}


def codec_choice(target: Path) -> dict[str, Any] | None:
    """Return what an earlier import into the same target measured to choose its codec; None where none did.

    Raises:
        ShardError: it cannot be read.
    """
    for path in (target / STORY_NAME, target / WORK_NAME / CHOICE_NAME):
        choice = _read(path).get("codec_choice") if path.exists() else None
        if isinstance(choice, dict) and choice.get("codec") in codecs.CODECS:
            return choice
    return None


def keep_codec_choice(work: Path, choice: dict[str, Any]) -> None:
    """Keep the chosen codec for an import that resumes."""
    write_atomically(work / CHOICE_NAME, (canonical_json({"codec_choice": choice}) + "\n").encode())


def check_name(target: Path) -> None:
    """Check that the name of the target can be written to the records of the set.

    Raises:
        ShardError: the name is not UTF-8.
    """
    if not is_text(target):
        raise ShardError(f"{shown(target)}: is not a name in UTF-8.", cure="Name another folder.")


def check_free(target: Path) -> None:
    """Check, without writing, that an import can write the target.

    Raises:
        ShardError: the folder cannot be made or written, or another import is writing it.
    """
    above = next(folder for folder in (target, *target.absolute().parents) if folder.exists())
    if not above.is_dir():
        raise unwritten(target, OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)))
    if not os.access(above, os.W_OK | os.X_OK):
        raise unwritten(target, OSError(errno.EACCES, os.strerror(errno.EACCES)))
    lock = target / WORK_NAME / "lock"
    if lock.exists():
        with lock.open() as file:
            _hold(file, target, fcntl.LOCK_SH)


def _hold(lock: IO[str], target: Path, how: int) -> None:
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ShardError(
            f"{target}: another import is writing it.",
            cure="Wait for it, or name another folder.",
            path=target,
        ) from None


def check_clearable(target: Path) -> bool:
    """Return whether `clear` has something to remove.

    Raises:
        ShardError: the folder holds something else.
    """
    if not target.is_dir() or not any(target.iterdir()):
        return False
    if not ((target / INDEX_NAME).exists() or (target / WORK_NAME).exists()):
        raise _of_something_else(target)
    return True


def clear(target: Path) -> None:
    """Remove a shard set, also a partial one: only files that an import writes.

    Raises:
        ShardError: the folder holds something else, or a file cannot be removed.
    """
    if not check_clearable(target):
        return
    try:
        (target / INDEX_NAME).unlink(missing_ok=True)  # first: from here on it is no whole set
        for path in [
            *target.glob("shard-*.h5"),
            *target.glob(".*.partial"),
            *(target / name for name in (*TABLES, STORY_NAME)),
        ]:
            path.unlink(missing_ok=True)
        if (target / WORK_NAME).exists():
            shutil.rmtree(target / WORK_NAME)
    except OSError as error:
        raise ShardError(
            f"{target}: cannot be cleared ({error.strerror}).",
            cure="Remove the folder yourself.",
            path=target,
        ) from None


@contextlib.contextmanager
def working(target: Path, request: dict[str, Any], *, is_alone: bool = True) -> Iterator[Path]:
    """Hold the target, exclusively or beside other parts of one import; yields its work folder.

    Raises:
        ShardError: another import runs there, or the folder cannot be written.
        CingulumError: the disk is full.
    """
    work = target / WORK_NAME
    make(work)
    try:
        lock = (work / "lock").open("w")
    except OSError as error:
        raise unwritten(target, error) from None
    with lock:
        _hold(lock, target, fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH)
        write_atomically(work / "request.json", (canonical_json(request) + "\n").encode())
        yield work


def make(work: Path) -> None:
    """Make the work folder.

    Raises:
        ShardError: it cannot be made.
        CingulumError: the disk is full.
    """
    try:
        work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritten(work.parent, error) from None


def finished(work: Path) -> None:
    """Remove the work folder of a complete set."""
    shutil.rmtree(work, ignore_errors=True)


def save(work: Path, number: int, images: Sequence[Examined], sha256: str) -> None:
    """Keep the hash of a written shard, and the records of the images examined for it."""
    kept = {"sha256": sha256, "images": [image.to_json() for image in images]}
    write_atomically(_records_path(work, number), (canonical_json(kept) + "\n").encode())


def load(work: Path, number: int, images: Sequence[SourceImage]) -> list[Examined] | None:
    """Return the records of a shard; None without any, or if its file or images have changed since."""
    try:
        kept = json.loads(regular_files.read(_records_path(work, number), MOST_BYTES).decode("utf-8"))
        # Here and not later: what is read next is read by HDF5, which damaged files can crash or hold up.
        if regular_files.sha256(work.parent / f"shard-{number:05d}.h5") != kept["sha256"]:
            return None
        records = [Examined.from_json(tree) for tree in kept["images"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None  # not written yet, or of another version: the shard is made again
    if len(records) > len(images):
        return None
    same = all(
        record.identity == image.identity
        and record.stamp == stamp(image)
        and record.findings[: len(image.findings)] == image.findings
        for record, image in zip(records, images, strict=False)
    )
    return records if same else None


def mark(images: Sequence[Examined]) -> str:
    """Return a hash of the images, and of their bytes, that a shard was made from."""
    used = [
        [image.identity, image.sha256, *([image.further] if image.further else [])]
        for image in images
        if image.status != "bad"
    ]
    return hashlib.sha256(canonical_json(used).encode()).hexdigest()


def _records_path(work: Path, number: int) -> Path:
    return work / f"shard-{number:05d}.json"
