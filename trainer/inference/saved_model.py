"""Opening saved networks."""

from __future__ import annotations

from pathlib import Path

import keras

from trainer import models, record
from trainer.errors import RunError
from trainer.record import RunFolder


def load_model(folder: RunFolder) -> keras.Model:
    """The best epoch's network of a finished run.

    Raises:
        RunError: model.keras is damaged, or was made with a network of one's own that is not there.
    """
    config = record.load_config(folder)
    # Networks of ours or of one's own may have layers that Keras must know of before it opens the file.
    models.describe(config.model.name)
    cure = f"Write it anew: rm {folder.result}; cingulum train {folder.config} --resume"
    return open_file(folder.model, cure=cure)


def open_file(path: Path, *, cure: str | None = None) -> keras.Model:
    """The network in a `.keras` file.

    Raises:
        RunError: it is damaged, or has layers that Keras has not been told of; with this cure.
    """
    try:
        return keras.saving.load_model(path, compile=False)
    except (ValueError, OSError, TypeError, KeyError) as error:
        reason = str(error).partition("\n")[0]
        raise RunError(f"{path}: cannot be opened as a Keras model ({reason}).", cure=cure) from None
