"""Import TensorFlow without the notes meant for its own developers, and without what we do not use.

TensorFlow 2.21 writes some of them to the file descriptor itself, before its log level is known
(`oneDNN custom operations are on`, twice per rank), so that no setting silences them.

Keras imports scikit-learn, matplotlib and pandas where they are installed, for its own wrappers and plots:
a third of the time that TensorFlow's import takes, in every rank.

The import makes half a million objects that live to the end. Python's garbage collector looks through them
again and again meanwhile, and once more when the process ends: a second, as much as the rest of the import.
"""

from __future__ import annotations

import atexit
import gc
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

# Absl's prefix of an informational line, and its remark about its own start.
_NOTE = re.compile(
    rb"I\d{4} .*(port|cpu_feature_guard)\.cc"
    rb"|WARNING: All log messages before absl::InitializeLog"
    rb"|To enable the following instructions"
)

# What Keras imports for itself if it can.
_OPTIONAL = ("sklearn", "matplotlib", "pandas")
_whole = True


def leave_out_what_keras_can_do_without() -> None:
    """Hide scikit-learn, matplotlib and pandas from Keras in `import_tensorflow`, from now on.

    They can be imported as ever afterwards. For programs whose code is all ours: a user's script may hand
    Keras a pandas DataFrame. Nor is garbage looked for in what is there when TensorFlow has been imported,
    and in anything when the process ends.
    """
    global _whole
    _whole = False


def import_tensorflow() -> Any:
    """Import TensorFlow; its start-up notes are left out, whatever else it says is passed on.

    Later only errors are shown: at the level of warnings TensorFlow repeats an error of our own loader with
    its traceback. TF_CPP_MIN_LOG_LEVEL=0 shows everything.
    """
    first = "tensorflow" not in sys.modules
    with ExitStack() as around:
        around.enter_context(_without_collecting())
        if not _whole:
            around.enter_context(_hidden(_OPTIONAL))
        if os.environ.get("TF_CPP_MIN_LOG_LEVEL") != "0":
            os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
            around.enter_context(_without_notes())
        import tensorflow

        if first and not _whole:
            gc.freeze()
            atexit.register(gc.freeze)
    return tensorflow


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Keep the garbage collector from running; afterwards it is on or off as before."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def _hidden(names: Iterable[str]) -> Iterator[None]:
    """Let imports of these packages fail as if they were not installed; those already there stay."""
    hidden = [name for name in names if name not in sys.modules]
    absent: dict[str, Any] = dict.fromkeys(hidden)
    sys.modules.update(absent)
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


@contextmanager
def _without_notes() -> Iterator[None]:
    sys.stderr.flush()
    original = os.dup(2)
    with tempfile.TemporaryFile() as aside:
        os.dup2(aside.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(original, 2)
            aside.seek(0)
            for line in aside:
                if not _NOTE.match(line):
                    os.write(original, line)
            os.close(original)
