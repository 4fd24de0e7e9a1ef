"""Opening the network of a finished run."""

from __future__ import annotations

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
    try:
        return keras.saving.load_model(folder.model, compile=False)
    except (ValueError, OSError, TypeError, KeyError) as error:
        reason = str(error).partition("\n")[0]
        raise RunError(
            f"{folder.model}: cannot be opened as a Keras model ({reason}).",
            cure=f"Write it anew: rm {folder.result}; cingulum train {folder.config} --resume",
        ) from None
