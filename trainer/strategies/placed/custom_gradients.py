"""Custom gradients of a traced step, which TensorFlow would keep for ever."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tensorflow.python.framework import ops


@contextlib.contextmanager
def forgotten() -> Iterator[None]:
    """Return a context to trace a step in; at its end TensorFlow forgets the custom gradients traced in it.

    `tf.custom_gradient` enters each one under a new name into a registry from which nothing is ever taken
    (`_graph_mode_decorator` in tensorflow/python/ops/custom_gradient.py), and with it the graph and all
    variables that the graph refers to. A step that differentiates within the trace asks for none later.
    """
    registry = ops.gradient_registry._registry
    before = set(registry)
    try:
        yield
    finally:
        for name in set(registry) - before:
            if name.startswith("CustomGradient-"):
                del registry[name]
