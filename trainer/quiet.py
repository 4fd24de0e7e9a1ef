"""Import TensorFlow without the notes that it writes for its own developers.

TensorFlow 2.21 writes some of them to the file descriptor itself, before its log level is known
(`oneDNN custom operations are on`, twice per rank), so that no setting silences them.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Absl's prefix of an informational line, and its remark about its own start.
_NOTE = re.compile(
    rb"I\d{4} .*(port|cpu_feature_guard)\.cc"
    rb"|WARNING: All log messages before absl::InitializeLog"
    rb"|To enable the following instructions"
)


def import_tensorflow() -> Any:
    """Import TensorFlow; its start-up notes are left out, whatever else it says is passed on.

    Later only errors are shown: at the level of warnings TensorFlow repeats an error of our own loader with
    its traceback. TF_CPP_MIN_LOG_LEVEL=0 shows everything.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0":
        import tensorflow
    else:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        with _without_notes():
            import tensorflow
    return tensorflow


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
