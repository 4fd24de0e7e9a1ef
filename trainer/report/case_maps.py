"""The predicted label maps that a run keeps for its report: evaluation/maps/row-<row>.nii.gz."""

from __future__ import annotations

import gzip
from pathlib import Path

import nibabel
import numpy as np

from trainer.atomic import make_folder, write_bytes
from trainer.data.images.reading import DAMAGED


def path_of(run_folder: Path, row: int) -> Path:
    """Return the path of the predicted map of a row of the shard set."""
    return run_folder / "evaluation" / "maps" / f"row-{row:06d}.nii.gz"


def write(run_folder: Path, row: int, labels: np.ndarray, affine: np.ndarray) -> Path:
    """Keep a predicted map for the report (the subjects of lowest Dice are the ones it shows).

    Args:
        run_folder: of the run.
        row: of the shard set.
        labels: uint8 (D, H, W), on the grid of the stored volume.
        affine: float (4, 4), the volume's.

    Raises:
        OSError: the file cannot be written.
    """
    path = path_of(run_folder, row)
    make_folder(path.parent)
    image = nibabel.Nifti1Image(np.asarray(labels, np.uint8), np.asarray(affine, np.float64))
    # Not nibabel's own saving, which needs a name that ends in .nii.gz; and without a time in the file.
    write_bytes(path, gzip.compress(image.to_bytes(), mtime=0))
    return path


def read(run_folder: Path, row: int, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return the map, uint8 (D, H, W); None where the run kept none, or it is damaged or of another shape."""
    path = path_of(run_folder, row)
    if not path.is_file():
        return None
    try:
        labels = np.asarray(nibabel.nifti1.Nifti1Image.from_filename(path).dataobj)
    except DAMAGED:
        return None
    return labels.astype(np.uint8) if labels.shape == shape else None
