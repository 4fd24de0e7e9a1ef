"""Augmentation in words: for the methods of a paper, a model card and a dry run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer.config.augment import AugmentConfig, active
from trainer.report.sentences import count

_AXES = {"left_right": "left to right", "back_front": "back to front", "bottom_top": "bottom to top"}


def phrases(settings: Mapping[str, Any]) -> list[str]:
    """Return what happens to training images, such as 'shifted by up to 2 voxels along each axis'.

    Args:
        settings: of `data.augment`, as `model_dump` or a run's config.yaml has them.
    """
    changes = []
    for name, value in active(dict(settings)).items():
        if name == "flip":
            changes.append("mirrored left to right with probability 0.5")
        elif name == "shift":
            changes.append(f"shifted by up to {count(value, 'voxel')} along each axis")
        elif name == "scale":
            changes.append(f"scaled in intensity by up to ±{value:.0%}")
        elif name == "noise":
            changes.append(f"overlaid with Gaussian noise (standard deviation {value:g})")
        elif name == "mirror":
            changes += [f"mirrored {_AXES[axis]} with probability {share:g}" for axis, share in value.items()]
        else:
            rest = ", ".join(f"{key} {number:g}" for key, number in value.items() if key != "probability")
            section: Any = AugmentConfig.model_fields[name].annotation
            changes.append(f"{section.words} with probability {value['probability']:g} ({rest})")
    return changes
