"""Opening saved networks: no code runs because a run folder names it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import keras

import trainer.models  # noqa: F401 - makes our layers known to Keras
from trainer.errors import RunError, typed
from trainer.inference import model_file
from trainer.models import own_code
from trainer.run_folder import resuming
from trainer.run_folder.record import RunFolder
from trainer.run_folder.run_record import RunRecord

# The option of a command that allows a file to be run.
_OPTION = "Where you trust it: --allow-code FILE"


def load_model(folder: RunFolder, code: Sequence[Path] = (), *, option: str = _OPTION) -> keras.Model:
    """Return the best epoch's network of a finished run.

    Args:
        folder: of the run.
        code: Python files that the user allowed to be run for layers that are neither Keras' nor ours.
        option: how the user can allow one, for the message.

    Raises:
        RunError: model.keras is damaged, or unsafe to open; it has layers of its own, and no file was
            allowed, or none that the run was trained with.
        ModelError: such a file raises an error.
    """
    ran = RunRecord.read(folder.run)
    allowed = own_code.chosen(code, ran, folder.path)
    names = model_file.own_classes(folder.model)
    for file in allowed:
        if own_code.missing(names, allowed):
            file.run()
    absent = own_code.missing(names, allowed)
    if absent:
        raise _unknown(folder.model, absent, _cure(ran, allowed, option))
    cure = f"Write it again: rm {typed(folder.result)}; {resuming.command(folder)}"
    return _opened(folder.model, cure)


def open_file(path: Path) -> keras.Model:
    """Return the network in a `.keras` file.

    Raises:
        RunError: it is damaged or unsafe to open, or has layers that are not registered with Keras.
    """
    absent = own_code.missing(model_file.own_classes(path))
    if absent:
        raise _unknown(path, absent, "Take a file without them.")
    return _opened(path, None)


def _opened(path: Path, cure: str | None) -> keras.Model:
    try:
        return keras.saving.load_model(path, compile=False, safe_mode=True)
    except Exception as error:
        # A damaged or made-up file can make Keras raise anything.
        reason = str(error).partition("\n")[0][:300] or type(error).__name__
        raise RunError(
            f"{path}: cannot be opened as a Keras model ({reason}).", cure=cure, path=path
        ) from None


def _unknown(path: Path, absent: Sequence[str], cure: str) -> RunError:
    shown = ", ".join(repr(name[:60]) for name in absent[:5]) + (" and others" if len(absent) > 5 else "")
    return RunError(
        f"{path}: has layers or functions that are neither Keras' nor ours: {shown}.", cure=cure, path=path
    )


def _cure(ran: RunRecord, allowed: Sequence[own_code.Code], option: str) -> str:
    if allowed:
        files = ", ".join(str(code.path) for code in allowed)
        return f"{files} does not register them: @keras.saving.register_keras_serializable() on each class."
    if ran.knows_code and ran.code is None:
        return "The run was trained without code of its own (run.json), so that its network needs none."
    hint = f"Their code is not run unasked. {option}"
    if ran.code is None:
        return f"{hint} (the run does not record which: an older cingulum made it)."
    return f"{hint}, which was {ran.code.file[:200]!r} when it was trained."
