"""Decide whether a set is read past the page cache (docs/decisions/0009-staging.md)."""

from __future__ import annotations

import os
from typing import Literal

from trainer import byte_sizes
from trainer.data.loading import memory
from trainer.data.shards.shards import ShardSet

Choice = Literal["auto", "use", "bypass"]


def go_past(shards: ShardSet, choice: Choice, available: int | None = None) -> str | None:
    """Read a set past the page cache where configured or useful, and return why; call before its first read.

    A set that is read in another order in each epoch, and does not fit into the memory, is hardly ever found
    there; but each page of it is copied, and takes the place of another one.

    Args:
        shards: the set.
        choice: `auto` decides by the set's size, where it lies on a disk of this host: what a file system of
            other hosts makes of such reads is its own.
        available: bytes of memory that may still be taken; default: as `memory.available_bytes` finds it.

    Returns:
        Why, for people; None where it is read as usual.
    """
    if choice == "use":
        return None
    if choice == "auto":
        status = [(shards.path / name).stat() for name in sorted({volume.shard for volume in shards.volumes})]
        nbytes = sum(one.st_size for one in status)
        left = memory.available_bytes() if available is None else available
        # File systems without a disk of their own, as those of other hosts, have numbers of no device.
        if nbytes <= left or not all(os.major(one.st_dev) for one in status):
            return None
        why = f"{byte_sizes.as_text(nbytes)} do not fit into the {byte_sizes.as_text(left)} of memory left"
    else:
        why = "data.page_cache=bypass"
    shards.go_past_cache()
    return why
