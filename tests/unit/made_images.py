"""Small images and cohorts written for the tests of the import."""

from __future__ import annotations

import gzip
from pathlib import Path

import nibabel
import numpy as np

# Every way to permute and flip three axes.
AXIS_CODES = tuple(
    "".join(code)
    for first in "LRPAIS"
    for second in "LRPAIS"
    for third in "LRPAIS"
    for code in [(first, second, third)]
    if len({{"L": 0, "R": 0, "P": 1, "A": 1, "I": 2, "S": 2}[letter] for letter in code}) == 3
)


def head(shape=(20, 24, 22), seed=0) -> np.ndarray:
    """An ellipsoid without any symmetry, (X, Y, Z) float32 from 0 to about 860."""
    axes = np.meshgrid(*(np.linspace(-1, 1, n, dtype=np.float32) for n in shape), indexing="ij")
    x, y, z = axes
    inside = (x / 0.7) ** 2 + (y / 0.8) ** 2 + (z / 0.75) ** 2 < 1
    inside |= (np.abs(x - 0.6) < 0.2) & (np.abs(y - 0.3) < 0.2) & (np.abs(z - 0.1) < 0.2)
    texture = np.random.default_rng(seed).uniform(0, 60, shape).astype(np.float32)
    return np.where(inside, 500 + 150 * x + 100 * y + 50 * z + texture, 0).astype(np.float32)


def affine(voxel=(8.0, 8.0, 8.0)) -> np.ndarray:
    """RAS+, the origin near the middle."""
    matrix = np.diag([*voxel, 1.0])
    matrix[:3, 3] = (-80.0, -95.0, -85.0)
    return matrix


def nifti(path: Path, seed=0, data: np.ndarray | None = None, matrix: np.ndarray | None = None) -> Path:
    """Write a NIfTI-1 image of a head; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    voxels = head(seed=seed) if data is None else data
    nibabel.save(nibabel.Nifti1Image(voxels, affine() if matrix is None else matrix), path)
    return path


def bids(root: Path, subjects=4, labels=("AD", "NC")) -> Path:
    """Write a BIDS folder with one head per subject; labels in turn."""
    rows = ["participant_id\tage\tsex\tdiagnosis"]
    for number in range(subjects):
        name = f"sub-{number:02d}"
        nifti(root / name / "anat" / f"{name}_T1w.nii.gz", seed=number)
        rows.append(f"{name}\t{60 + number}\t{'MF'[number % 2]}\t{labels[number % len(labels)]}")
    (root / "dataset_description.json").write_text('{"Name": "test", "BIDSVersion": "1.9.0"}')
    (root / "participants.tsv").write_text("\n".join(rows) + "\n")
    return root


def image_of(root: Path, number: int) -> Path:
    """The image of a subject of `bids`."""
    return root / f"sub-{number:02d}" / "anat" / f"sub-{number:02d}_T1w.nii.gz"


def cut(path: Path, share=0.5) -> None:
    """Cut the end off a file."""
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])


def gzip_of(content: bytes, path: Path) -> Path:
    """Write bytes as a gzip file."""
    path.write_bytes(gzip.compress(content, mtime=0))
    return path
