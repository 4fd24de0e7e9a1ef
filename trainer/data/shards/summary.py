"""Summary of a shard set, as one JSON-able value."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

import numpy as np

from trainer.data.shards.index import Volume
from trainer.data.shards.shards import ShardSet

UNLABELLED = "(none)"
_EXAMPLE = ("id", "subject", "session", "label", "age", "sex", "source")


def summary(shards: ShardSet, examples: int = 5) -> dict[str, Any]:
    """Return a summary of a shard set.

    Args:
        shards: the set.
        examples: how many volumes to list one by one.

    Returns:
        JSON values only; sizes in bytes, ages in years, voxel size in mm. `labels` has one entry per label,
        with `UNLABELLED` for volumes without one.
    """
    volumes = shards.volumes
    voxels = int(np.prod(shards.shape[:3]))
    voxel_bytes = shards.shape[3] * shards.stored_dtype.itemsize + bool(
        shards.maps
    )  # of a label map, one byte
    decoded = len(volumes) * voxels * voxel_bytes
    by_label: dict[str, list[Volume]] = {}
    for volume in volumes:
        by_label.setdefault(UNLABELLED if volume.label is None else volume.label, []).append(volume)
    return {
        "path": str(shards.path),
        "format_version": shards.index.format_version,
        "content_hash": shards.content_hash,
        "source": shards.source,
        "shape": list(shards.shape),
        "dtype": shards.stored_dtype.name,
        "voxel_size": list(shards.voxel_size),
        "codec": shards.codec,
        "bricks": shards.bricks,
        "shards": len(shards.index.shards),
        "bytes": sum(shard.nbytes for shard in shards.index.shards),
        "bytes_decoded": decoded,
        "compression": decoded / sum(volume.nbytes + (volume.map_nbytes or 0) for volume in volumes),
        "volumes": len(volumes),
        "subjects": len({volume.subject for volume in volumes}),
        "contrasts": list(shards.contrasts),
        "maps": list(shards.maps),
        "label_name": shards.label_name,
        "labels": {label: _people(by_label[label]) for label in sorted(by_label)},
        "normalisation": dict(shards.normalisation),
        "preprocessing": dict(shards.preprocessing),
        "examples": [{key: getattr(volume, key) for key in _EXAMPLE} for volume in volumes[:examples]],
    }


def _people(volumes: Sequence[Volume]) -> dict[str, Any]:
    """Count volumes, subjects, sexes and ages of one label."""
    ages = [volume.age for volume in volumes if volume.age is not None]
    return {
        "volumes": len(volumes),
        "subjects": len({volume.subject for volume in volumes}),
        "sex": dict(sorted(collections.Counter(volume.sex or "unknown" for volume in volumes).items())),
        "age": {"mean": float(np.mean(ages)), "min": min(ages), "max": max(ages)} if ages else None,
    }
