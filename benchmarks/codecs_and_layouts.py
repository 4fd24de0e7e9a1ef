#!/usr/bin/env python3
"""What each codec, stored type and layout costs on phantom volumes.

.venv/bin/python benchmarks/codecs_and_layouts.py --size 96 --size 128

Times are processor seconds of one thread (the best of some rounds), so they hold on a machine that is not
quiet; files are read from the page cache, so what a disk adds is not in them: bytes read are given instead.
docs/decisions/0008-shards.md tells what was decided by it.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import nibabel as nib
import numpy as np

from trainer.data.images.preprocess import Recipe, prepare
from trainer.data.importing.codec_choice import decode_all
from trainer.data.phantom import image, people, template
from trainer.data.shards import codecs, stored_types
from trainer.data.shards.index import SetMeta, VolumeMeta
from trainer.data.shards.layout import StorageLayout
from trainer.data.shards.shard_writer import ShardWriter
from trainer.data.shards.shards import ShardSet

ROUNDS = 5
PATCH = 64
LAYOUTS = (None, 64, 32)
META = SetMeta("diagnosis", "phantoms", (1.0, 1.0, 1.0))


def main() -> None:
    """Print, for each size, the tables of codecs and types, of layouts, and of rounding."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--size", type=int, action="append", help="edge of a volume; may be given again")
    parser.add_argument("--volumes", type=int, default=4)
    arguments = parser.parse_args()
    for size in arguments.size or [96, 128]:
        volumes = phantoms(size, arguments.volumes)
        print(f"\n{arguments.volumes} phantoms of {size}^3, z-scored, one thread\n")
        table_of_codecs(volumes)
        table_of_layouts(volumes)
        table_of_rounding(volumes)


def phantoms(size: int, count: int) -> list[np.ndarray]:
    """What `cingulum import --dtype float32` makes of phantoms, (size, size, size, 1) each."""
    average, recipe = template.build(size), Recipe.of_size(size, dtype="float32")
    made = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t1.nii"
        for number in range(count):
            person = people.draw(0, number, ("AD", "NC"))
            nib.save(
                nib.Nifti1Image(image.make(average, person, 0, 1.0, pattern="diffuse").t1, average.affine),
                path,
            )
            made.append(prepare(path, recipe).array)
    return made


def seconds(work: Callable[[], object]) -> float:
    """Processor seconds of this thread for one piece of work; the best of some rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        begun = time.thread_time()
        work()
        best = min(best, time.thread_time() - begun)
    return best


def table_of_codecs(volumes: list[np.ndarray]) -> None:
    """Size, and speed of encoding, decoding alone, and all that a loader does after reading."""
    heading(
        "type", "codec", "MiB each", "ratio", "encode MB/s", "decode MB/s", "check + decode + cast, volumes/s"
    )
    for name in stored_types.STORED_TYPES:
        dtype = stored_types.stored_dtype(name)
        packed = [stored_types.pack(stored_types.rounded(volume, name), dtype) for volume in volumes]
        for codec in codecs.CODECS:
            layout = StorageLayout(volumes[0].shape, dtype, codec)
            stored = [(layout.encode(values), scale) for values, scale in packed]
            nbytes = sum(values.nbytes for values, _ in packed)
            size = sum(len(chunk) for chunks, _ in stored for chunk in chunks)
            encode = seconds(lambda layout=layout, packed=packed: [layout.encode(v) for v, _ in packed])
            out = np.empty(layout.shape, dtype)
            decode = seconds(
                lambda codec=codec, stored=stored, out=out: [
                    codecs.decode_into(codec, chunks[0], out) for chunks, _ in stored
                ]
            )
            every = seconds(
                lambda layout=layout, stored=stored: [decode_all(layout, c, scale) for c, scale in stored]
            )
            row(
                name, codec, f"{size / len(volumes) / 2**20:.2f}", f"{nbytes / size:.2f}",
                f"{nbytes / encode / 1e6:.0f}", f"{nbytes / decode / 1e6:.0f}", f"{len(volumes) / every:.0f}",
            )  # fmt: skip
    print()


def table_of_layouts(volumes: list[np.ndarray]) -> None:
    """Reading whole volumes and random patches, from the page cache, with whole volumes and bricks."""
    shape = volumes[0].shape
    patch = min(PATCH, shape[0])
    heading(
        "codec", "layout", "MiB each", "whole volumes/s", f"patches of {patch}^3 /s", "MiB read per patch"
    )
    random = np.random.default_rng(0)
    corners = [
        (number % len(volumes), tuple(int(c) for c in random.integers(0, shape[0] - patch + 1, 3)))
        for number in range(32)
    ]
    whole, part = np.empty(shape, np.float32), np.empty((patch,) * 3 + (1,), np.float32)
    for codec in codecs.CODECS:
        for bricks in LAYOUTS:
            if bricks is not None and bricks >= shape[0]:
                continue
            with tempfile.TemporaryDirectory() as folder:
                shards = written(Path(folder), volumes, codec, bricks)

                def read_all(shards: ShardSet = shards) -> None:
                    for number in range(len(shards)):
                        shards.read_into(number, whole)

                def read_patches(shards: ShardSet = shards) -> None:
                    for number, corner in corners:
                        shards.read_into(number, part, corner)

                all_s = seconds(read_all)
                before = shards.bytes_read
                read_patches()
                each = (shards.bytes_read - before) / len(corners)
                patch_s = seconds(read_patches)
                size = sum(volume.nbytes for volume in shards.volumes) / len(shards)
                row(
                    codec, "whole" if bricks is None else f"bricks of {bricks}", f"{size / 2**20:.2f}",
                    f"{len(shards) / all_s:.0f}", f"{len(corners) / patch_s:.0f}", f"{each / 2**20:.2f}",
                )  # fmt: skip
    print()


def written(folder: Path, volumes: list[np.ndarray], codec: str, bricks: int | None) -> ShardSet:
    """A float16 set of the volumes."""
    writer = ShardWriter(folder, volumes[0].shape, "float16", codec, bricks, meta=META)
    rows = [
        (volume.astype(np.float16), VolumeMeta(f"{number}", f"{number}.nii", "", np.eye(4).tolist()))
        for number, volume in enumerate(volumes)
    ]
    writer.finish([writer.write_shard(0, rows)])
    return ShardSet.open(folder)


def table_of_rounding(volumes: list[np.ndarray]) -> None:
    """Error of the stored types on z-scored values."""
    heading("type", "bytes a voxel", "largest error", "root mean square error", "signal to rounding, dB")
    for name in stored_types.STORED_TYPES:
        errors = np.concatenate(
            [(stored_types.rounded(v, name).astype(np.float32) - v).ravel() for v in volumes]
        ).astype(np.float64)
        power = float(np.mean(np.concatenate([v.ravel() for v in volumes]).astype(np.float64) ** 2))
        rms = float(np.sqrt(np.mean(errors**2)))
        noise = f"{10 * np.log10(power / rms**2):.1f}" if rms else "exact"
        width = stored_types.stored_dtype(name).itemsize
        row(name, str(width), f"{np.abs(errors).max():.2e}", f"{rms:.2e}", noise)
    print()


def heading(*cells: str) -> None:
    """The first two lines of a Markdown table."""
    row(*cells)
    row(*("---" for _ in cells))


def row(*cells: str) -> None:
    """A line of a Markdown table."""
    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
