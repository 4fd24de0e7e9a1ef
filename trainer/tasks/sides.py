"""Labels that tell left from right, and volumes that are mirrored because nobody said otherwise."""

from __future__ import annotations

import re
from collections.abc import Iterable

from trainer.config import RunConfig
from trainer.errors import ConfigError

_SIDE = re.compile(r"(?<![a-z])(left|right|lh|rh)(?![a-z])", re.IGNORECASE)


def check(config: RunConfig, names: Iterable[str]) -> None:
    """Ask whether to mirror, where the configuration leaves it open and names of labels speak of a side.

    Args:
        config: of the run. One that has `data.augment` has said it, whatever it says there.
        names: of classes, of classes in label maps, or of the number that is learned.

    Raises:
        ConfigError: a mirrored volume may not fit its label any more.
    """
    if "augment" in config.data.model_fields_set or not config.data.augment.flip:
        return
    told = [name for name in names if _SIDE.search(name)]
    if told:
        raise ConfigError(
            f"The label {told[0]!r} seems to tell left from right, and training volumes are mirrored "
            "where data.augment is not given.",
            cure="Say which is meant: data.augment.flip=false, or data.augment.flip=true",
            key="data.augment.flip",
        )
