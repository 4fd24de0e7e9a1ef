"""What a network looked at: maps of attribution, and whether they deserve belief.

Pure functions on a Keras model and volumes `(B, D, H, W, C)`:

- `score`: the one number per volume that is explained;
- `gradcam`: 3D Grad-CAM (Selvaraju et al., ICCV 2017);
- `integrated_gradients` (Sundararajan et al., ICML 2017);
- `occlusion` (Zeiler and Fergus, ECCV 2014);
- `sanity`: do the maps change when the weights are randomised? (Adebayo et al., NeurIPS 2018).

And what `cingulum explain` is made of:

- `subjects`: the volumes that are explained;
- `methods`: the three methods under one call;
- `regions`: on phantoms, how much of a map lies where the disease really acted;
- `group`: the mean map of a class, and whether its space is that of the MNI brain;
- `pictures`, `page`: overlays, mosaics, a glass brain, and the page that shows them;
- `story`: all of it, into RUN/explanations/<method>/.

Nothing heavy is imported here: the command line takes the names of methods from this file.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path

from trainer.errors import RunError


class MethodName(str, Enum):
    """How a map is made."""

    gradcam = "gradcam"
    integrated_gradients = "integrated-gradients"
    occlusion = "occlusion"


class BaselineName(str, Enum):
    """What a volume without findings is: integrated gradients start there, occlusion covers with it."""

    air = "air"
    mean = "mean"


def check(run: Path, task: str, *, of_patches: bool) -> None:
    """Refuse a run whose output no map explains.

    Args:
        task: its name, as in run.json.
        of_patches: whether it was trained on patches.

    Raises:
        RunError: it segments, or sees patches.
    """
    if task == "segmentation":
        raise RunError(
            f"{run}: is a segmentation run, whose label map needs no explanation.",
            cure="Explain a run of classification or regression.",
            path=run,
        )
    if of_patches:
        raise RunError(
            f"{run}: was trained on patches: its output for a volume is a mean over many patches.",
            cure="Explain a run that was trained without data.patch.",
            path=run,
        )
