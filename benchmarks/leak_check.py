#!/usr/bin/env python3
"""How alike different phantoms look to the leak check, and a phantom and its own copies.

.venv/bin/python benchmarks/leak_check.py --size 32 --subjects 250

docs/decisions/0006-leak-check.md tells what it printed.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import nibabel as nib
import numpy as np
from scipy import ndimage

from trainer.data.images.preprocess import Recipe, prepare
from trainer.data.phantom import image, people, template
from trainer.data.splits.leaks import _own_part, miniature

COPIED = 20
GAP = 1.5


def main() -> None:
    """Print the similarity of different heads, then that of each kind of copy with its original."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--subjects", type=int, default=100)
    arguments = parser.parse_args()
    average, recipe = template.build(arguments.size), Recipe.of_size(arguments.size)
    random = np.random.default_rng(0)

    def scan(number: int, image_seed: int = 0) -> np.ndarray:
        """The T1 of a person; another `image_seed` is another visit to the scanner."""
        image.stream = lambda seed, n, purpose: people.stream(
            seed + (image_seed if purpose == "image" else 0), n, purpose
        )
        return image.make(average, people.draw(0, number, ("AD", "NC")), 0, GAP, pattern="diffuse").t1.astype(
            np.float32
        )

    with tempfile.TemporaryDirectory() as folder:

        def stored(t1: np.ndarray, zoom: float = 1.0) -> np.ndarray:
            affine = average.affine.copy()
            affine[:3, :3] /= zoom
            nib.save(nib.Nifti1Image(t1, affine), Path(folder) / "t1.nii")
            return prepare(Path(folder) / "t1.nii", recipe).array

        scans = [scan(number) for number in range(arguments.subjects)]
        originals = [stored(t1) for t1 in scans]
        some = range(min(COPIED, len(scans)))
        copies = {
            "noise 0.2 sd": [originals[k] + random.normal(0, 0.2, originals[k].shape) for k in some],
            "noise 0.5 sd": [originals[k] + random.normal(0, 0.5, originals[k].shape) for k in some],
            "shifted 1 voxel": [np.roll(originals[k], 1, axis=k % 3) for k in some],
            "shifted 1,1,1 voxel": [np.roll(originals[k], (1, -1, 1), axis=(0, 1, 2)) for k in some],
            "cropped, imported": [stored(scans[k][2:, 1:]) for k in some],
            "re-sampled x0.8, imported": [stored(ndimage.zoom(scans[k], 0.8, order=1), 0.8) for k in some],
            "scanned again": [stored(scan(k, 5000)) for k in some],
        }
    small = [miniature(volume) for volume in originals]
    everyone = np.array(small)
    threshold = _own_part(everyone, [str(k) for k in range(len(small))])
    different = (everyone @ everyone.T)[np.triu_indices(len(small), 1)]
    print(f"{arguments.subjects} phantoms of {arguments.size}^3 voxels, threshold {threshold}")
    print(
        f"{'different heads':28} sd {different.std():.3f}  99.9 % below {np.quantile(different, 0.999):.3f}  "
        f"largest of {len(different)}: {different.max():.3f}"
    )
    for name, volumes in copies.items():
        # One copy at a time: a cohort in which every head is there twice is another cohort.
        found = []
        for k in some:
            with_copy = np.array([*small, miniature(volumes[k].astype(np.float16))])
            _own_part(with_copy, [str(number) for number in range(len(with_copy))])
            found.append(float(with_copy[k] @ with_copy[-1]))
        share = np.mean(np.array(found) > threshold)
        print(f"{name:28} least {min(found):.3f}  median {np.median(found):.3f}  found {share:.0%}")


if __name__ == "__main__":
    main()
