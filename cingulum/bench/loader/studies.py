"""What is to be measured, from the command line: checked, and told before anything is done."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from cingulum.bench.loader.measure import LoaderStudy
from cingulum.bench.loader.processes import python_of
from trainer.bench.loader.job import MARK_VOXELS, LoaderJob
from trainer.bench.loader.readers import KINDS, LIMIT, OURS, OURS_PAST
from trainer.data.shards import codecs
from trainer.errors import InputError

SMALLEST, LARGEST = 16, 256
PICTURES = (".png", ".svg", ".pdf")
CACHES = {"cold": ("cold",), "warm": ("warm",), "both": ("cold", "warm")}

# Rough, on two cores: seconds to start a reader, and to write and to read 10^6 voxels in all formats.
_START_S, _WRITE_S, _EPOCH_S = 10.0, 0.5, 0.12


def checked(
    *,
    sizes: Sequence[int] | None,
    volumes: int,
    batch: int,
    threads: int,
    repeats: int,
    cache: str,
    dtype: str,
    codec: str,
    readers: Sequence[str] | None,
    data: Path | None,
) -> LoaderStudy:
    """Return the study that the options describe.

    Raises:
        InputError: an option has a value that cannot be measured.
    """
    chosen = tuple(dict.fromkeys(sizes or (96, 128)))
    for size in chosen:
        if not SMALLEST <= size <= LARGEST:
            raise InputError(f"--size {size}: phantoms are made from {SMALLEST} to {LARGEST} voxels an edge.")
    if volumes % batch or volumes >= 2**MARK_VOXELS:
        raise InputError(
            f"--volumes {volumes}: not a multiple of the batch, {batch}, or more than {2**MARK_VOXELS - 1}.",
            cure=f"For example --volumes {max(1, volumes // batch) * batch}.",
        )
    if codec not in codecs.CODECS:
        raise InputError(f"--codec {codec}: unknown; there are {', '.join(codecs.CODECS)}.")
    for name in readers or ():
        if name not in KINDS:
            raise InputError(f"--reader {name}: unknown; there are {', '.join(KINDS)}.")
    names = tuple(name for name in KINDS if not readers or name in (OURS, OURS_PAST, LIMIT, *readers))
    if cache == "warm":
        names = tuple(name for name in names if not KINDS[name].past_cache)
    job = LoaderJob(folder="", volumes=volumes, batch=batch, threads=threads, dtype=dtype, codec=codec)
    return LoaderStudy(
        job,
        sizes=chosen,
        repeats=repeats,
        caches=CACHES[cache],
        readers=names,
        data=data,
    )


def check_picture(path: Path) -> None:
    """Check that a picture can be written there.

    Raises:
        InputError: not a kind of picture that we write, or its folder cannot be written to.
    """
    if path.suffix not in PICTURES:
        raise InputError(f"--plot {path}: must end in {', '.join(PICTURES)}.")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise InputError(f"--plot {path}: {path.parent} is missing or cannot be written to.")


def told(study: LoaderStudy, *, sweeping: bool) -> str:
    """Return a description of what would be measured."""
    job = study.job
    sizes = ", ".join(f"{size}^3" for size in study.sizes)
    lines = [
        f"{job.volumes} volumes of {sizes}, {job.dtype}, {job.codec}; "
        f"batches of {job.batch}, {job.threads} threads",
        f"data: {study.data or 'a temporary folder, removed at the end'}, "
        f"about {_room(study) / 2**30:.1f} GiB",
    ]
    if sweeping:
        return "\n".join([*lines, "our loader at the first size, warm: by volumes, by threads, by ranks"])
    lines.append(f"{study.repeats} repeats in turn, page cache {' and '.join(study.caches)}:")
    for name in study.readers:
        kind = KINDS[name]
        missing = "" if python_of(name) else f" (not installed: {kind.install})"
        lines.append(f"  {name:18s} {kind.title}{missing}")
    return "\n".join([*lines, f"about {_seconds(study) / 60:.0f} minutes on two cores"])


def _room(study: LoaderStudy) -> float:
    # Raw and uncompressed forms of them, and compressed ones of a third or so each.
    bytes_each = 2 if study.job.dtype == "float16" else 4
    forms = 1.0 + sum(1.0 if KINDS[name].written_by else 0.1 for name in study.readers)
    return sum(study.job.volumes * size**3 * bytes_each * forms for size in study.sizes)


def _seconds(study: LoaderStudy) -> float:
    installed = sum(python_of(name) is not None for name in study.readers)
    measured = study.repeats * len(study.caches)
    total = 0.0
    for size in study.sizes:
        million = study.job.volumes * size**3 / 1e6
        total += _START_S * installed + _WRITE_S * million + _EPOCH_S * million * measured
    return total
