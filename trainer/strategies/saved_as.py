"""Optimizers whose class we change, saved as what Keras knows."""

from __future__ import annotations


def saved_as(kind: type, keras_class: type) -> type:
    """Let a model saved with this class be opened anywhere: it names Keras' own class."""
    kind.__name__ = keras_class.__name__
    kind.__qualname__ = keras_class.__qualname__
    kind.__module__ = keras_class.__module__
    if kind.__module__.startswith("keras.src."):
        kind.__module__ = "keras.optimizers"
    return kind
