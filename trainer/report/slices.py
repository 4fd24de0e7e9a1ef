"""Example subjects of a split: three planes of each volume, with the true and the predicted label."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

import numpy as np
from matplotlib.image import imsave

from trainer.data.shards import ShardSet
from trainer.report.story import Predictions


@dataclass(frozen=True)
class Example:
    """One subject's picture: sagittal, coronal and axial mid-slices, side by side."""

    subject: str
    why: str
    true: str
    predicted: str
    probability: float
    image: str
    width: int
    height: int

    @property
    def is_right(self) -> bool:
        """Whether the network told the true class."""
        return self.true == self.predicted


def choose(found: Predictions, most: int = 6) -> list[tuple[int, str]]:
    """Positions of subjects worth seeing, and why: surest right of each class, surest wrong, least sure."""
    sure, right = found.probabilities.max(axis=1), found.predicted == found.true
    falling = np.argsort(-sure, kind="stable")
    chosen: dict[int, str] = {}
    for k in range(len(found.classes)):
        hits = [int(i) for i in falling if right[i] and found.true[i] == k]
        if hits:
            chosen[hits[0]] = "surest right answer"
    for i in [int(i) for i in falling if not right[i]][:2]:
        chosen[i] = "surest mistake" if right[list(chosen)].all() else "another sure mistake"
    for i in reversed(falling):
        if len(chosen) >= most:
            break
        chosen.setdefault(int(i), "among the least sure")
    return list(chosen.items())[:most]


def examples(found: Predictions, shards: ShardSet) -> list[Example]:
    """Pictures of the subjects that `choose` names.

    Raises:
        ShardError: a volume is damaged.
    """
    shown = []
    for i, why in choose(found):
        picture = three_planes(shards.read(int(found.rows[i])), shards.voxel_size)
        predicted = int(found.predicted[i])
        shown.append(
            Example(
                subject=found.subjects[i],
                why=why,
                true=found.classes[found.true[i]],
                predicted=found.classes[predicted],
                probability=float(found.probabilities[i, predicted]),
                image=_data_uri(picture),
                width=picture.shape[1],
                height=picture.shape[0],
            )
        )
    return shown


def three_planes(volume: np.ndarray, voxel_size: tuple[float, float, float]) -> np.ndarray:
    """Mid-slices of a volume (D, H, W, C) in RAS order, as one float picture (rows, columns) from 0 to 1.

    Sagittal (front to the right), coronal, axial (front up); in the last two the subject's right is on the
    right. Grey runs from the 1st to the 99.5th percentile; voxels are drawn in their proportions.
    """
    image = np.nan_to_num(np.asarray(volume[..., 0], np.float32))
    low, high = np.percentile(image, [1, 99.5])
    image = np.clip((image - low) / (high - low if high > low else 1.0), 0, 1)
    x, y, z = (side // 2 for side in image.shape)
    dx, dy, dz = voxel_size
    planes = [
        _scaled(image[x].T[::-1], dz, dy),
        _scaled(image[:, y].T[::-1], dz, dx),
        _scaled(image[:, :, z].T[::-1], dy, dx),
    ]
    height = max(len(plane) for plane in planes)
    padded = []
    for plane in planes:
        above = (height - len(plane)) // 2
        padded.append(np.pad(plane, ((above, height - len(plane) - above), (3, 3))))
    return np.hstack(padded)


def _scaled(plane: np.ndarray, row_mm: float, column_mm: float) -> np.ndarray:
    """Repeat rows and columns so that pixels are square and the longer side has at least 128 of them."""
    finest = min(row_mm, column_mm)
    zoom = max(1.0, 128 / max(plane.shape))
    rows = _places(plane.shape[0], zoom * row_mm / finest)
    columns = _places(plane.shape[1], zoom * column_mm / finest)
    return plane[rows][:, columns]


def _places(count: int, factor: float) -> np.ndarray:
    size = max(1, round(count * factor))
    return np.minimum((np.arange(size) + 0.5) * count / size, count - 1).astype(int)


def _data_uri(picture: np.ndarray) -> str:
    file = io.BytesIO()
    imsave(file, picture, cmap="gray", vmin=0, vmax=1, format="png")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
