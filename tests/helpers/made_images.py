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


# As `affine`, left and right exchanged.
MIRRORED = np.diag([-1.0, 1.0, 1.0, 1.0]) @ affine()


def turned(degrees: float, matrix: np.ndarray | None = None) -> np.ndarray:
    """`affine`, or another one, turned about the x axis."""
    angle = np.deg2rad(degrees)
    turn = np.eye(4)
    turn[1:3, 1:3] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    return turn @ (affine() if matrix is None else matrix)


def written(path: Path, kind=nibabel.Nifti1Image, sform=None, qform=None, data=None, **fields) -> Path:
    """Write a head whose header has these transforms (code 1 for both) and fields; `dim={4: 0}` sets one."""
    image = kind(head() if data is None else data, affine())
    image.set_qform(affine() if qform is None else qform, 1)
    image.set_sform(affine() if sform is None else sform, 1)
    raw = bytearray(image.to_bytes())
    header = np.frombuffer(raw, image.header.template_dtype, count=1)
    for name, value in fields.items():
        if isinstance(value, dict):
            for place, entry in value.items():
                header[name][0, place] = entry
        else:
            header[name] = value
    content = bytes(raw)
    path.write_bytes(gzip.compress(content) if path.name.endswith(".gz") else content)
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


def t2(seed=0, shape=(20, 24, 22)) -> np.ndarray:
    """The same head as `head` in a contrast where what is bright there is dark."""
    one = head(shape, seed)
    return np.where(one > 0, 1100 - one, 0).astype(np.float32)


def add_t2(root: Path, number: int, matrix: np.ndarray | None = None) -> Path:
    """Write the T2w image of a subject of `bids`, beside its T1w image."""
    path = image_of(root, number)
    return nifti(path.with_name(f"sub-{number:02d}_T2w.nii.gz"), data=t2(number), matrix=matrix)


def shares(seed=0, shape=(20, 24, 22)) -> dict[str, np.ndarray]:
    """Shares of GM, WM and CSF in each voxel of `head`, (X, Y, Z) float32; less than 1 at its border."""
    one = head(shape, seed)
    inside = np.clip(one / 400, 0, 1)
    parts = np.random.default_rng(seed + 100).dirichlet((2, 2, 1), shape).astype(np.float32)
    return {code: inside * parts[..., i] for i, code in enumerate(("GM", "WM", "CSF"))}


def add_shares(root: Path, number: int, pipeline="tissue") -> list[Path]:
    """Write the three probability maps of a subject of `bids`, as `cingulum phantom` names them."""
    name = f"sub-{number:02d}"
    folder = root / "derivatives" / pipeline / name / "anat"
    return [
        nifti(folder / f"{name}_label-{code}_probseg.nii.gz", data=share)
        for code, share in shares(number).items()
    ]


def labels(seed=0) -> np.ndarray:
    """Label numbers 0, 2, 3 and 41 over `head`, (X, Y, Z) int16: left, right, and a block within."""
    numbers = np.where(head(seed=seed) > 0, 2, 0)
    numbers[10:] = np.where(numbers[10:] > 0, 41, 0)
    numbers[5:8, 10 + seed % 3 : 15, 8:13] = 3
    return numbers.astype(np.int16)


def dseg_of(root: Path, number: int, pipeline="seg", extra="") -> Path:
    """Where the map of label numbers of a subject of `bids` lies."""
    name = f"sub-{number:02d}"
    return root / "derivatives" / pipeline / name / "anat" / f"{name}{extra}_dseg.nii.gz"


NAMES = "index\tname\n2\tleft\n3\tblock\n41\tright\n"


def add_dseg(root: Path, subjects: int) -> None:
    """Write maps of label numbers for the subjects of `bids`, and their names."""
    for number in range(subjects):
        nifti(dseg_of(root, number), data=labels(number))
    (root / "derivatives" / "seg" / "dseg.tsv").write_text(NAMES)
