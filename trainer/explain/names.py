"""Names of methods and baselines, which the command line knows before TensorFlow is loaded."""

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
