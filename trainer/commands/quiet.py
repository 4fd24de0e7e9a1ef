"""TensorFlow's own log lines are for its developers: dozens per rank before the first step."""

from __future__ import annotations

import os


def quiet_tensorflow() -> None:
    """Show errors only, unless the user asked for more; call it before TensorFlow is imported."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
