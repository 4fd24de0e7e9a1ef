"""Check that a folder is a whole shard set."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from trainer.data.shards import regular_files
from trainer.data.shards.bricks import unpack_table
from trainer.data.shards.index import INDEX_NAME, Index, Volume
from trainer.data.shards.index_reading import read_index
from trainer.data.shards.stored_bytes import Identity
from trainer.errors import DamagedShardError, ShardError, typed


def whole_index(path: Path) -> tuple[Index, dict[str, Identity]]:
    """Return the index of a set whose shards are all there, and which file each shard is.

    Raises:
        ShardError: the folder is no shard set, is half written, is of a newer format, or a shard is missing
            or of another size than the index says.
    """
    if not os.path.lexists(path / INDEX_NAME):
        raise _no_index(path)
    index = read_index(path)
    seen = {}

    def damaged(where: Path, what: str) -> DamagedShardError:
        return DamagedShardError(f"{where}: {what}", cure=restore(path), path=where)

    for shard in index.shards:
        file = path / shard.file
        try:
            status = file.stat()
        except OSError:
            raise damaged(path, f"the shard {shard.file} is missing.") from None
        try:
            seen[shard.file] = Identity.of(regular_files.checked(file, status))
        except OSError as error:
            raise damaged(file, f"{error.strerror}.") from None
        size = seen[shard.file].nbytes
        if size != shard.nbytes:
            raise damaged(file, f"has {size} bytes, not {shard.nbytes}: truncated or replaced.")
        for volume in shard.volumes:
            if any(_outside(*place, size) for place in places(volume)):
                raise damaged(path, f"the index places volume {volume.id} outside {shard.file}.")
    return index, seen


def places(volume: Volume) -> Iterator[tuple[int, int]]:
    """Return where the chunks of a volume and of its label map lie: offset and size in bytes."""
    for offset, nbytes, text in (
        (volume.offset, volume.nbytes, volume.brick_table),
        (volume.map_offset, volume.map_nbytes, volume.map_brick_table),
    ):
        if text is not None:
            table = unpack_table(text)
            # The bricks that begin first and end last speak for all.
            first, last = table["offset"].min(), (table["offset"] + table["nbytes"]).max()
            yield int(first), int(last - first)
        elif offset is not None and nbytes is not None:
            yield offset, nbytes


def _outside(offset: int, nbytes: int, size: int) -> bool:
    return offset < 0 or nbytes < 1 or offset + nbytes > size


def _no_index(path: Path) -> ShardError:
    if path.exists() and not path.is_dir():
        return ShardError(
            f"{path}: is a file, but a shard set is a folder.", cure="Give the folder.", path=path
        )
    if not path.is_dir():
        return ShardError(
            f"{path}: there is no such folder.",
            cure="`cingulum import SOURCE SHARDS` makes a shard set.",
            path=path,
        )
    if any(path.glob("*shard-*.h5*")):
        return ShardError(
            f"{path}: is incomplete: it has shards but no index.",
            cure="Run the same `cingulum import` command again: it goes on where it stopped.",
            path=path,
        )
    return ShardError(
        f"{path}: is not a shard set, it has no {INDEX_NAME}.",
        cure=f"To make one from images: cingulum import {typed(path)} SHARDS --label diagnosis",
        path=path,
    )


def restore(path: Path) -> str:
    """Return how to find all damage and repair it."""
    again = f"cingulum import SOURCE {typed(path)} --overwrite"
    return f"To find all damage: cingulum verify {typed(path)}. To make it again: {again}"
