"""Boxes of a tensor put together to a larger one, and taken out of it again, as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from keras import ops

from trainer.planning.placement.boxes import Box

Part = tuple[Box, Any]


def taken(box: Box, outer: Box, values: Any) -> Any:
    """The box of an array that holds exactly `outer`."""
    if box == outer:
        return values
    slices = box.slices_in(outer)
    if len(slices) > 1 and outer.shape[0] == 1 and box.with_range(1, outer.ranges[1]) == outer:
        # TensorFlow copies nothing where only the first axis is cut.
        return tf.reshape(tf.reshape(values, outer.shape[1:])[slices[1]], box.shape)
    return values[slices]


def placed(box: Box, outer: Box, values: Any) -> Any:
    """An array that holds `outer`: the values in their box, zeros around it. The adjoint of `taken`."""
    if box == outer:
        return values
    around = [
        (start - first, last - stop)
        for (start, stop), (first, last) in zip(box.ranges, outer.ranges, strict=True)
    ]
    return ops.pad(values, around)


def assembled(box: Box, parts: Sequence[Part], *, sums: bool = False, ordered: bool = False) -> Any:
    """An array that holds `box`, of parts that cover it.

    Args:
        box: wanted.
        parts: boxes with their values; disjoint within `box` unless `sums`.
        sums: whether to add up where parts overlap.
        ordered: whether the sum must be the same, bit for bit, wherever the same parts are added up.
    """
    inside = [
        (common, taken(common, held, values)) for held, values in parts if (common := held & box) is not None
    ]
    if len(inside) == 1 and inside[0][0] == box:
        return inside[0][1]
    if not sums:
        for axis in range(len(box.ranges)):
            inside.sort(key=lambda part: part[0].ranges[axis])
            if all(part.with_range(axis, box.ranges[axis]) == box for part, _ in inside):
                return ops.concatenate([values for _, values in inside], axis=axis)
    whole = [placed(held, box, values) for held, values in inside]
    # TensorFlow sorts the terms of a sum by the names of operations, which are not the same on all ranks.
    return tf.reduce_sum(tf.stack(whole), axis=0) if ordered else tf.add_n(whole)
