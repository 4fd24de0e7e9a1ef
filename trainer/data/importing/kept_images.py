"""Images that were examined and are kept until their shard is written, in `TARGET/.import/images/`.

So an import that takes seconds for each image goes on where it was stopped, and several processes, also on
several hosts, prepare parts of one.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from trainer.data.images.recipe import Recipe
from trainer.data.importing.examination import Examined, examine, stamp
from trainer.data.shards.index import canonical_json
from trainer.data.shards.shard_writer import write_atomically
from trainer.data.sources.listing import SourceImage

FOLDER = "images"


class KeptExamination(NamedTuple):
    """An image to examine, and where what comes of it is kept.

    Attributes:
        image: see `examine`.
        recipe: see `examine`.
        folder: in which it is looked for and kept.
        only_kept: whether the arrays stay in the folder and are not returned.
    """

    image: SourceImage
    recipe: Recipe
    folder: Path
    only_kept: bool


def examine_once(task: KeptExamination) -> tuple[Examined, bool]:
    """Return what `examine` does, and whether it was there already; a task of a worker process.

    Raises:
        ShardError: it cannot be kept.
        CingulumError: the disk is full.
    """
    path = _path(task.folder, task.image)
    examined = _read(path, task.image)
    was_there = examined is not None
    if examined is None:
        examined = examine((task.image, task.recipe))
        write_atomically(path, _packed(examined))
    return (replace(examined, array=None, label_map=None) if task.only_kept else examined), was_there


def _path(folder: Path, image: SourceImage) -> Path:
    findings = [finding.to_json() for finding in image.findings]
    key = canonical_json([image.identity, stamp(image), findings])
    return folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.npz"


def _packed(examined: Examined) -> bytes:
    file = io.BytesIO()
    arrays = {"array": examined.array, "label_map": examined.label_map}
    record = np.frombuffer(canonical_json(examined.to_json()).encode(), np.uint8)
    there = {name: array for name, array in arrays.items() if array is not None}
    np.savez(file, allow_pickle=False, record=record, **there)
    return file.getvalue()


def _read(path: Path, image: SourceImage) -> Examined | None:
    """Return what is kept of an image; None without, or where it cannot be read: it is examined again."""
    try:
        with np.load(path, allow_pickle=False) as kept:
            # By name: older releases of NumPy take an option of `savez` for an array.
            arrays = {name: kept[name] for name in ("array", "label_map") if name in kept.files}
            record = kept["record"].tobytes()
        examined = Examined.from_json(json.loads(record))
        examined = replace(examined, **arrays)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, zipfile.BadZipFile, zlib.error):
        return None
    return examined if examined.identity == image.identity else None
