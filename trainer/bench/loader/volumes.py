"""The volumes that every reader reads: phantoms that went through the import, mirrored and scaled to many."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import nibabel
import numpy as np

from trainer.bench.loader.checking import Source, marked, sampled
from trainer.bench.loader.job import LoaderJob
from trainer.data.images.linear import average_brain
from trainer.data.images.preprocess import prepare
from trainer.data.images.recipe import Recipe
from trainer.data.phantom import image, people, template
from trainer.data.shards.index import SetMeta, VolumeMeta
from trainer.data.shards.shard_writer import ShardWriter
from trainer.errors import InputError

PHANTOMS = 4
PER_SHARD = 16
_GAP = 1.5
# In a version of its own, so that a folder made by another recipe is made anew.
_RECIPE = 2
_DONE = "made.json"


def make(job: LoaderJob) -> None:
    """Write the volumes of a job into its folder, and the shard set of them; nothing where they are there.

    A phantom is mirrored along three axes and scaled by up to some per cent, which leaves its noise, and how
    well it compresses, as they are.

    Raises:
        InputError: the folder holds volumes of another kind.
    """
    what = {
        "recipe": _RECIPE,
        "size": job.size,
        "volumes": job.volumes,
        "dtype": job.dtype,
        "codec": job.codec,
    }
    done = job.path(_DONE)
    if done.is_file():
        if json.loads(done.read_text()) != what:
            raise InputError(f"{job.folder}: holds other volumes.", cure="Name another folder, or remove it.")
        return
    Path(job.folder).mkdir(parents=True, exist_ok=True)
    heads = _heads(job.size)
    samples, largest = [], 0.0
    with job.path("volumes.raw").open("wb") as raw:
        for number in range(job.volumes):
            volume = _variant(heads, number, job.dtype)
            samples.append(sampled(volume))
            largest = max(largest, float(np.abs(volume).max()))
            raw.write(volume.tobytes())
    np.savez(job.path("expected.npz"), samples=np.array(samples), largest=largest)
    _write_shards(job)
    done.write_text(json.dumps(what))


def folder_of(data: Path, job: LoaderJob) -> Path:
    """Return the folder of a job's volumes."""
    return data / f"{job.volumes}-of-{job.size}-{job.dtype}-{job.codec}"


def _heads(size: int) -> list[np.ndarray]:
    average, recipe = template.build(size), Recipe.of_size(size)
    heads = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(PHANTOMS):
            made = image.make(average, people.draw(0, number, ("AD", "NC")), 0, _GAP, pattern="diffuse")
            path = Path(folder) / "t1.nii"
            nibabel.save(nibabel.Nifti1Image(made.t1, average.affine), path)
            heads.append(prepare(path, recipe).array.astype(np.float32))
    return heads


def _variant(heads: list[np.ndarray], number: int, dtype: str) -> np.ndarray:
    """Volume `number`, (D, H, W, 1): another head, seen in another mirror, a little brighter each time."""
    turn, which = divmod(number, len(heads))
    mirrors = tuple(axis for axis in range(3) if turn >> axis & 1)
    volume = np.flip(heads[which], mirrors) * np.float32(1 + 0.001 * (turn // 8))
    return marked(np.ascontiguousarray(volume, dtype), number)


def _write_shards(job: LoaderJob) -> None:
    meta = SetMeta(
        label_name="diagnosis",
        source="cingulum bench loader",
        voxel_size=(average_brain.FIELD_OF_VIEW / job.size,) * 3,
        normalisation={},
        preprocessing={},
    )
    writer = ShardWriter(job.path("shards"), job.shape, job.dtype, job.codec, meta=meta)
    source = Source(job)
    records = []
    for shard, first in enumerate(range(0, job.volumes, PER_SHARD)):
        rows = range(first, min(first + PER_SHARD, job.volumes))
        records.append(writer.write_shard(shard, [(source.volume(row), _about(row)) for row in rows]))
    writer.finish(records)


def _about(row: int) -> VolumeMeta:
    return VolumeMeta(
        subject=f"sub-{row:05d}",
        source=f"sub-{row:05d}.nii.gz",
        source_sha256=f"{row:064x}",
        affine=np.eye(4).tolist(),
        label=("AD", "NC")[row % 2],
    )
