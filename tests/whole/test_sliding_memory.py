"""Sliding windows over a large image stay within the memory that they state; in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]

MEASURE = """
import json, resource, sys
import numpy as np
from trainer.inference import sliding

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

np.zeros(4) @ np.zeros((4, 4))
volume = np.memmap(sys.argv[1], np.float16, "r", shape=(512, 512, 512, 1))
windows = sliding.Windows((32, 128, 128), 0.25)
slopes = np.array([[-1.0, 0.2, 1.0, 1.5]], np.float32)
before = peak()
labels = np.empty(volume.shape[:3], np.uint8)
for first, slab in sliding.blend(volume, lambda w: w @ slopes + np.float32([0, 0.1, 0, -0.6]), windows):
    for plane, outputs in enumerate(slab):  # argmax makes eight bytes per voxel
        labels[first + plane] = outputs.argmax(axis=-1)
print(json.dumps({
    "grown": peak() - before,
    "counts": np.bincount(labels[::8, ::8, ::8].ravel(), minlength=4).tolist(),
}))
"""


def test_a_volume_of_512_voxels_a_side_stays_within_the_stated_memory(tmp_path):
    """Input, label map and sums are 0.5 GiB; all outputs at once would be 2 GiB more."""
    path = tmp_path / "volume"
    plane = np.linspace(-2, 2, 512, dtype=np.float16)[:, None] * np.ones((1, 512), np.float16)
    with path.open("wb") as file:
        for _ in range(512):
            file.write(plane.tobytes())
    ran = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    path.unlink()
    found = json.loads(ran.stdout)
    volume, labels, batches = 2 * 512**3, 512**3, 2**26
    slab = 32 * 512 * 512 * 4 * 4  # planes of a window, the image's, K float32 at each voxel
    assert found["grown"] < volume + labels + slab + batches
    assert min(found["counts"]) > 0  # it was really done
