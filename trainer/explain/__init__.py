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


class MethodName(str, Enum):
    """How a map is made."""

    gradcam = "gradcam"
    integrated_gradients = "integrated-gradients"
    occlusion = "occlusion"


class BaselineName(str, Enum):
    """What a volume without findings is: integrated gradients start there, occlusion covers with it."""

    air = "air"
    mean = "mean"
