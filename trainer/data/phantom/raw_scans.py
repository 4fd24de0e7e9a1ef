"""Phantoms as a scanner would give them: a skull, a scalp and a neck about the brain, turned, shaded, noisy.

They are for trying `cingulum import --prepare linear`: what they show is as the cohort's own images have it,
but nothing lies where a network expects it.
"""

from __future__ import annotations

import json
import signal
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
from scipy import ndimage
from scipy.spatial.transform import Rotation

from trainer.data.images import reading
from trainer.data.images.linear.average_brain import CENTRE
from trainer.data.phantom import bids, files
from trainer.data.phantom.people import Person
from trainer.data.workers import default_workers, held_back, in_order

FOLDER = Path("sourcedata") / "raw"
"""Below the cohort's."""

# Layers about the brain: how far each reaches, in mm, and how bright it is in T1w; white matter is 1.
_LAYERS = ((2.5, 0.25), (4.5, 0.08), (6.0, 0.5), (7.5, 0.08), (9.0, 0.55), (12.0, 1.15), (13.5, 0.5))
_NECK_RADIUS_MM, _NECK_BELOW_MM, _MUSCLE = 52.0, 45.0, 0.6
_FACE_MM, _FACE_RADIUS_MM = (0.0, 55.0, -62.0), 42.0
# Room about the cube of the brain, in mm: on all sides, and below for the neck.
_ROOM_MM, _ROOM_BELOW_MM = 22.0, 60.0
# What a scanner sees of a head: half of it to the side, to the front, upwards; and downwards with and without
# neck.
_SEEN_MM = (108.0, 125.0, 112.0)
_DOWN_MM = (92.0, 155.0)
_BIAS_KNOTS = 4


@dataclass(frozen=True)
class ScannerPose:
    """How a head lay in a scanner, and how it was scanned.

    Attributes:
        matrix: (4, 4) from mm of the head's own space to mm of the scanner.
        voxel: (3,) mm.
        bias: (4, 4, 4) knots of the logarithm of the bias field.
        noise: standard deviation of its two parts, as a share of white matter's signal.
        with_neck: whether the neck is in the picture.
    """

    matrix: np.ndarray
    voxel: tuple[float, float, float]
    bias: np.ndarray
    noise: float
    with_neck: bool


def draw(rng: np.random.Generator) -> ScannerPose:
    """Return a random pose: turns to 20 degrees, shifts to 40 mm, scales of 0.9 to 1.1, voxels of 0.7 to 3
    mm.

    Half of the scans have voxels that are longer along one axis, to 1 x 1 x 5 mm.
    """
    turn = Rotation.from_euler("xyz", rng.uniform(-20, 20, 3), degrees=True).as_matrix()
    scale = rng.uniform(0.9, 1.1)
    matrix = np.eye(4)
    matrix[:3, :3] = scale * turn
    matrix[:3, 3] = np.array(CENTRE) + rng.uniform(-40, 40, 3) - matrix[:3, :3] @ np.array(CENTRE)
    voxel = np.full(3, rng.uniform(0.7, 3.0))
    if rng.random() < 0.5:
        voxel = np.ones(3)
        voxel[rng.integers(3)] = rng.uniform(1.0, 5.0)
    x, y, z = (float(size) for size in np.round(voxel, 3))
    bias = rng.normal(0, 0.15, (_BIAS_KNOTS,) * 3)
    return ScannerPose(matrix, (x, y, z), bias, float(rng.uniform(0.01, 0.05)), bool(rng.random() < 0.5))


def scanned(
    head: np.ndarray, affine: np.ndarray, pose: ScannerPose, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return what a scanner gives of a head: (X, Y, Z) int16, and its affine (4, 4), axes along the
    scanner's.

    Args:
        head: (X, Y, Z) float, white matter about 1, air 0.
        affine: (4, 4) of it, to mm of its own space.
        pose: how it lies.
        rng: of the noise.
    """
    middle = pose.matrix[:3, :3] @ np.array(CENTRE) + pose.matrix[:3, 3] + rng.uniform(-8, 8, 3)
    scale = np.cbrt(np.linalg.det(pose.matrix[:3, :3]))
    half = scale * np.array(_SEEN_MM)
    first = middle - [half[0], half[1], scale * _DOWN_MM[pose.with_neck]]
    shape = tuple(int(n) for n in np.ceil((middle + half - first) / pose.voxel))
    grid = np.diag([*pose.voxel, 1.0])
    grid[:3, 3] = first
    measured = _averaged(head, np.linalg.inv(affine) @ np.linalg.inv(pose.matrix) @ grid, shape, pose.voxel)
    zoom = [length / _BIAS_KNOTS for length in shape]
    measured *= np.exp(
        ndimage.zoom(pose.bias.astype(np.float32), zoom, order=3, mode="nearest", grid_mode=True)
    )
    real, imaginary = rng.standard_normal((2, *shape), dtype=np.float32) * np.float32(pose.noise)
    return np.round(np.hypot(measured + real, imaginary) * 800).astype(np.int16), grid


def _averaged(
    head: np.ndarray, to_head: np.ndarray, shape: tuple[int, ...], voxel: tuple[float, float, float]
) -> np.ndarray:
    """Return the mean of a head over each voxel of a grid, as a scanner measures it, float32."""
    parts = [max(1, round(size)) for size in voxel]
    total = np.zeros(shape, np.float32)
    for part in product(*map(range, parts)):
        shift = np.array([(index + 0.5) / n - 0.5 for index, n in zip(part, parts, strict=True)])
        offset = to_head[:3, :3] @ shift + to_head[:3, 3]
        total += ndimage.affine_transform(
            head, to_head[:3, :3], offset, output_shape=shape, output=np.float32, order=1, mode="constant"
        )
    return total / np.float32(np.prod(parts))


def with_head(
    brain: np.ndarray, affine: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return a brain inside a head, white matter about 1: (X, Y, Z) float32, and its affine (4, 4).

    Args:
        brain: (D, H, W), 0 outside the skull, axes in RAS+.
        affine: (4, 4) of it, cubic voxels at right angles to mm.
        rng: of the texture.
    """
    voxel = float(affine[0, 0])
    room, below = round(_ROOM_MM / voxel), round(_ROOM_BELOW_MM / voxel)
    white = float(np.percentile(brain[brain > 0], 90))
    head = np.pad(brain.astype(np.float32) / np.float32(white), ((room, room), (room, room), (below, room)))
    placed = affine.copy()
    placed[:3, 3] -= affine[:3, :3] @ np.array([room, room, below])
    skull = ndimage.binary_fill_holes(head > 0)
    away = ndimage.distance_transform_edt(~skull) * voxel
    x, y, z = (
        (np.arange(length) * voxel + placed[axis, 3]).reshape([-1 if a == axis else 1 for a in range(3)])
        for axis, length in enumerate(head.shape)
    )
    neck = (np.hypot(x - CENTRE[0], y - CENTRE[1]) < _NECK_RADIUS_MM) & (z < CENTRE[2] - _NECK_BELOW_MM)
    face = (
        sum((axis - middle) ** 2 for axis, middle in zip((x, y, z), _FACE_MM, strict=True))
        < _FACE_RADIUS_MM**2
    )
    outside = np.where(neck | face, np.float32(_MUSCLE), np.float32(0))
    for reach, brightness in reversed(_LAYERS):
        outside[away <= reach] = brightness
    texture = ndimage.gaussian_filter(rng.standard_normal(head.shape, dtype=np.float32), 2.5 / voxel)
    outside *= 1 + np.float32(0.1) * texture / texture.std()
    return np.where(skull, head, ndimage.gaussian_filter(outside, 0.5)), placed


def write_raw(
    cohort: Path, participants: Sequence[Person], contrasts: Sequence[str], workers: int | None = None
) -> None:
    """Write `sourcedata/raw/`, a BIDS folder of raw scans of the cohort, T1w alone, and poses.json.

    Poses and noise follow from the images, so that the same cohort gives the same scans. What is there is not
    made again.

    Args:
        cohort: a whole one.
        participants: of the cohort.
        contrasts: not asked for: raw scans are T1-weighted.
        workers: processes; default: the cores this process may use.

    Raises:
        InputError: the folder cannot be written.
    """
    folder = cohort / FOLDER
    description = {"Name": "Cingulum phantom cohort, raw scans (not people)", "BIDSVersion": "1.10.0"}
    files.write(folder / "dataset_description.json", (json.dumps(description, indent=2) + "\n").encode())
    workers = min(workers or default_workers(), len(participants))
    poses = dict(in_order(partial(_write, cohort), participants, workers))
    text = json.dumps({"what": "mm of the cohort's images to mm of these scans", "poses": poses}, indent=1)
    files.write(folder / "poses.json", text.encode())
    files.write(folder / "participants.tsv", (cohort / "participants.tsv").read_bytes())


def _write(cohort: Path, person: Person) -> tuple[str, list[list[float]]]:
    """Write the raw scan of a person; return their name and the pose."""
    place = bids.subject_files(person)["T1w"]
    image = reading.read(cohort / place)
    rng = np.random.default_rng(zlib.crc32(image.data.tobytes()))
    pose = draw(rng)
    if not (target := cohort / FOLDER / place).is_file():
        head, affine = with_head(image.data, image.affine, rng)
        scan, affine = scanned(head, affine, pose, rng)
        with held_back(signal.SIGTERM):  # what ends a worker waits until the file is whole
            files.write(target, files.nifti(scan, affine, description="phantom, not a person"))
    return person.name, pose.matrix.tolist()
