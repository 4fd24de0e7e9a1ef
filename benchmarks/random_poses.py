#!/usr/bin/env python3
"""Register one head in many random poses, and compare where its brain comes to lie with the average brain.

    .venv/bin/python benchmarks/random_poses.py ch2.nii.gz ch2bet.nii.gz --poses 100 --out build/poses

HEAD lies in MNI space, as Debian's `mricron-data` has it; BRAIN is the same without skull. Each pose is one
of `trainer.data.phantom.raw_scans.draw`, or, with --turned, one of the 23 ways to exchange axes. Writes
poses.json (a line a pose) and poses.png (the worst, with the outline of the average brain), and prints a
summary.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image as Picture

from trainer.data.images import quality, reading, resampling
from trainer.data.images.linear import average_brain, brain, registering
from trainer.data.importing.examination import mid_slices, with_borders
from trainer.data.phantom import raw_scans
from trainer.data.workers import in_order
from trainer.processor import here

Volume = tuple[np.ndarray, np.ndarray]
_SHOWN = 12


def main() -> None:
    """Register all poses, write what came of each, and print a summary."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("head", type=Path)
    parser.add_argument("brain", type=Path)
    parser.add_argument("--poses", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--turned", action="store_true", help="the 23 ways to exchange axes")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("build/poses"))
    arguments = parser.parse_args()
    head, its_brain = (volume(path) for path in (arguments.head, arguments.brain))
    head = (head[0] / np.percentile(head[0][its_brain[0] > 0], 90), head[1])
    arguments.out.mkdir(parents=True, exist_ok=True)
    turned = list(exchanges()) if arguments.turned else [None] * arguments.poses
    numbers = list(enumerate(turned, start=arguments.seed))
    rows = []
    with (arguments.out / "poses.json").open("w", encoding="utf-8") as file:
        for row in in_order(partial(registered, head, its_brain), numbers, arguments.workers):
            rows.append(row)
            told = {key: value for key, value in row.items() if key != "picture"}
            file.write(json.dumps(told) + "\n")
            file.flush()
            print(
                f"{row['number']:4} dice {row['truth_dice']:.3f}  off {row['off_mm']:5.1f} mm  "
                f"correlation {row['correlation']:.3f}  own dice {row['dice']:.3f}  {row['seconds']:5.1f} s  "
                f"voxel {row['voxel']}  {' '.join(row['findings'])}",
                flush=True,
            )
    rows.sort(key=lambda row: row["truth_dice"])
    sheet = np.concatenate([row["picture"] for row in rows[:_SHOWN]])
    Picture.fromarray(sheet).save(arguments.out / "poses.png")
    dice = np.array([row["truth_dice"] for row in rows])
    seconds = np.array([row["seconds"] for row in rows])
    unseen = [row["number"] for row in rows if row["truth_dice"] < 0.88 and not row["findings"]]
    cried = [row["number"] for row in rows if row["truth_dice"] >= 0.92 and row["findings"]]
    print(
        f"{len(rows)} poses on {here()}: Dice at least 0.92 in {int((dice >= 0.92).sum())}, median "
        f"{np.median(dice):.3f}, worst {dice.min():.3f}; under 0.88 without a finding {unseen}; fine, with a "
        f"finding {cried}; seconds {np.median(seconds):.1f} (median), {seconds.max():.1f} (most)"
    )


def volume(path: Path) -> Volume:
    """Return an image's voxels, axes in RAS+, and its affine."""
    return quality.to_canonical(reading.read(path))


def exchanges() -> list[np.ndarray]:
    """Return the 23 turns by 90 and 180 degrees, (3, 3)."""
    every = [
        np.eye(3)[list(axes)] * np.array(signs)[:, None]
        for axes in itertools.permutations(range(3))
        for signs in itertools.product((1.0, -1.0), repeat=3)
    ]
    return [turn for turn in every if np.linalg.det(turn) > 0 and not np.allclose(turn, np.eye(3))]


def registered(head: Volume, its_brain: Volume, task: tuple[int, np.ndarray | None]) -> dict[str, Any]:
    """Return what came of one pose."""
    number, turn = task
    rng = np.random.default_rng(number)
    pose = raw_scans.draw(rng)
    scan, affine = raw_scans.scanned(*head, pose, rng)
    space = pose.matrix  # from MNI to the space that the scan's affine leads to
    if turn is not None:  # a header that names the wrong axes
        exchange = np.eye(4)
        exchange[:3, :3] = turn
        space, affine = exchange @ pose.matrix, exchange @ affine
    image = reading.Image(scan.astype(np.float32), affine, "Nifti1Image", scan.shape, "<i2", True)
    data, upright = quality.to_canonical(image)
    began = time.process_time()
    place = registering.register(data, upright)
    seconds = time.process_time() - began
    # What lies at p of the average brain was at world^-1 p of the scan, which is space^-1 world^-1 p of MNI.
    to_head = np.linalg.inv(place.world @ space)
    grid, size = average_brain.affine_of(brain.SIZE), (brain.SIZE,) * 3
    moved = (
        resampling.onto(
            (its_brain[0] > 0).astype(np.float32), np.linalg.inv(to_head) @ its_brain[1], size, grid
        )
        > 0.5
    )
    template = average_brain.of_size(brain.SIZE).mask > 0.5
    places = grid[:3, :3] @ np.array(np.nonzero(template)) + grid[:3, 3:]
    off = np.linalg.norm(to_head[:3, :3] @ places + to_head[:3, 3:] - places, axis=0)
    findings = registering.judge(place)
    shown = resampling.placed_on(place.corrected, place.world @ upright, 2.0, size, grid)
    shown = np.nan_to_num(shown)
    picture = mid_slices(shown, (1.0, 1.0, 1.0), *(float(v) for v in np.percentile(shown, [1.0, 99.8])))
    return {
        "number": number,
        "truth_dice": round(brain.dice(moved, template), 4),
        "off_mm": round(float(off.mean()), 2),
        "seconds": round(seconds, 1),
        "voxel": list(pose.voxel),
        "with_neck": pose.with_neck,
        "findings": [finding.code for finding in findings],
        **place.to_json(),
        "picture": with_borders(picture, template.astype(np.uint8)),
    }


if __name__ == "__main__":
    main()
