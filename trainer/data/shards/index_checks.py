"""Check that the values of an index are of the right kind: readers rely on it.

An index that was damaged does not match its content hash. One that another program wrote, and signed, may
still hold a list where a name belongs; it is refused here, and not in the midst of a training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from trainer.data.shards.index import Index, SetMeta, Volume
from trainer.data.shards.stored_types import stored_dtype

# Bytes of a volume, decoded; docs/reference/shard-format.md, Limits.
MOST_BYTES = 2**31


def check(index: Index) -> None:
    """Raise unless every value is of its kind; `ShardSet.open` checks what lies outside a shard's file.

    Raises:
        ValueError: says which value.
    """
    kind = stored_dtype(index.dtype)
    _require(kind.kind in "iuf" or kind.name == "bfloat16", "dtype", index.dtype)
    _require(math.prod(index.shape) * kind.itemsize <= MOST_BYTES, "shape", index.shape)
    _check_meta(index.meta)
    for shard in index.shards:
        _require(_is_name(shard.file), "file of a shard", shard.file)
        _require(_is_count(shard.nbytes), f"nbytes of {shard.file}", shard.nbytes)
        _require(isinstance(shard.sha256, str), f"sha256 of {shard.file}", shard.sha256)
        for volume in shard.volumes:
            _check_volume(volume, bool(index.meta.map_classes))


def _check_meta(meta: SetMeta) -> None:
    for name in ("label_name", "source"):
        _require(isinstance(getattr(meta, name), str), name, getattr(meta, name))
    _require(all(_is_number(size) and size > 0 for size in meta.voxel_size), "voxel_size", meta.voxel_size)
    for name in ("normalisation", "preprocessing"):
        _require(isinstance(getattr(meta, name), Mapping), name, getattr(meta, name))


def _check_volume(volume: Volume, mapped: bool) -> None:
    def require(right: bool, name: str) -> None:
        _require(right, f"{name} of volume {volume.id}", getattr(volume, name))

    for name in ("subject", "source", "source_sha256", "checksum"):
        require(isinstance(getattr(volume, name), str), name)
    for name in ("session", "label", "sex", "site"):
        require(isinstance(getattr(volume, name), str | None), name)
    for name in ("row", "offset", "nbytes"):
        require(_is_count(getattr(volume, name)), name)
    require(volume.scale is None or _is_number(volume.scale), "scale")
    require(volume.age is None or _is_number(volume.age), "age")
    require(_is_affine(volume.affine), "affine")
    require(volume.tissue is None or _is_table(volume.tissue, _is_number), "tissue")
    further = volume.further_sources
    require(further is None or _is_table(further, lambda value: isinstance(value, str)), "further_sources")
    if mapped:
        for name in ("map_offset", "map_nbytes"):
            require(_is_count(getattr(volume, name)), name)
        require(isinstance(volume.map_checksum, str), "map_checksum")


def _require(right: bool, name: str, value: Any) -> None:
    if not right:
        shown = repr(value)
        raise ValueError(f"{name}: {shown if len(shown) < 100 else shown[:100] + ' ...'}")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e300


def _is_name(value: Any) -> bool:
    """Return whether it can be the name of a file in the set's folder."""
    return isinstance(value, str) and value not in ("", ".", "..") and not set(value) & {"/", "\0"}


def _is_affine(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 4
        and all(isinstance(line, list) and len(line) == 4 and all(map(_is_number, line)) for line in value)
    )


def _is_table(value: Any, fits: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(name, str) and fits(v) for name, v in value.items())
