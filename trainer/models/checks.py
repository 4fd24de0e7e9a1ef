"""Checks of a network's arguments and of what it returned, before anything is trained."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import keras

from trainer.errors import ModelError
from trainer.models.network import Network


def input_shape(network: Network, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of one sample as a tuple: (D, H, W, C), or (H, W, C) and (1, H, W, C) for a 2D
    network.

    Raises:
        ModelError: the network takes no samples of that shape.
    """
    shape = tuple(int(side) for side in shape)
    lengths = {2: (3, 4), 3: (4,), None: (3, 4)}[network.dimensions]
    if len(shape) not in lengths or min(shape) < 1:
        raise ModelError(
            f"{network.name}: input of shape {shape}: a volume needs depth, height, width and "
            "channels, each at least 1.",
            key="model.name",
        )
    sides = shape[:-1]
    if network.dimensions == 2 and len(sides) == 3:
        if sides[0] != 1:
            raise ModelError(
                f"{network.name}: takes single slices, but the volumes have {sides[0]} slices.",
                cure="Take a 3D network, or import volumes of one slice: shape (1, H, W, C).",
                key="model.name",
            )
        sides = sides[1:]
    if min(sides) < network.smallest:
        size = "x".join(map(str, sides))
        raise ModelError(
            f"{network.name}: volumes of {size} voxels are too small: "
            f"each side needs at least {network.smallest}.",
            cure=f"Import the images again with `--size {network.smallest}` or more.",
            key="model.name",
        )
    return shape


def outputs(network: Network, count: int, *, dense: bool, fitting: Sequence[str]) -> None:
    """Check that a network can give `count` outputs per volume, or per voxel where `dense`.

    Args:
        fitting: the names of the networks that can, for the cure.

    Raises:
        ModelError: it cannot.
    """
    if count < 1:
        raise ModelError(f"{network.name}: {count} outputs: must be at least 1.", key="model.name")
    if network.dense in (None, dense):
        return
    names = ", ".join(fitting)
    if dense:
        raise ModelError(
            f"{network.name}: gives one output for a whole volume, but the task needs one for each voxel.",
            cure=f"For segmentation take one of: {names}.",
            key="model.name",
        )
    raise ModelError(
        f"{network.name}: gives an output for each voxel, but the task needs one for the whole volume.",
        cure=f"For classification and regression take one of: {names}.",
        key="model.name",
    )


def options(network: Network, given: dict[str, Any]) -> None:
    """Check the names of the options, and the width.

    Raises:
        ModelError: the network has no such option.
    """
    known = network.options
    if network.takes_any_option:
        return
    for option in given:
        if option not in known:
            close = difflib.get_close_matches(option, known, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ModelError(
                f"{network.name}: has no option {option!r}.{hint}",
                cure=f"It takes: {', '.join(known) or 'no options'}.",
                key=f"model.options.{option}",
            )
    width = given.get("width")
    if width is not None and (not isinstance(width, int) or width < 1):
        raise ModelError(
            f"{network.name}: width is {width!r}: it must be a whole number of channels, at least 1.",
            key="model.width",
        )


def returned(name: str, model: Any, shape: tuple[int, ...], count: int, *, dense: bool) -> None:
    """Check what a network's function returned.

    Raises:
        ModelError: not a model from one sample of `shape` to `count` float32 logits (per voxel, where
            `dense`).
    """
    if not isinstance(model, keras.Model):
        given = "nothing" if model is None else f"a value of the type {type(model).__name__}"
        raise ModelError(
            f"{name}: returned {given}, not a keras.Model.",
            cure="Its function ends in: return keras.Model(inputs, outputs)",
            key="model.name",
        )
    if not getattr(model, "outputs", None):
        raise ModelError(
            f"{name}: returned a {type(model).__name__} that is neither functional nor sequential, "
            "so that its layers cannot be seen.",
            cure="Return keras.Model(inputs, outputs).",
            key="model.name",
        )
    if not model.trainable_variables:
        raise ModelError(
            f"{name}: returned a model with nothing to train: none of its {len(model.layers)} layers has "
            "weights that may change.",
            cure="Add a layer with weights, such as Conv3D or Dense, or set `trainable = True`.",
            key="model.name",
        )
    taken, given = model.input_shape, model.output_shape
    if not isinstance(taken, tuple) or tuple(taken)[1:] != shape:
        raise ModelError(
            f"{name}: takes inputs of shape {taken}, but the volumes are {shape}.", key="model.name"
        )
    wanted = (None, *shape[:-1], count) if dense else (None, count)
    if given != wanted:
        each = "one logit per class" + (" and voxel" if dense else "")
        raise ModelError(
            f"{name}: returns outputs of shape {given}; {wanted} is wanted, {each}.", key="model.name"
        )
    if keras.backend.standardize_dtype(model.outputs[0].dtype) != "float32":
        raise ModelError(
            f"{name}: returns logits of type {model.outputs[0].dtype}.",
            cure="Make its last layer with dtype='float32'.",
            key="model.name",
        )
    if getattr(model.layers[-1], "activation", None) in (
        keras.activations.softmax,
        keras.activations.sigmoid,
    ):
        raise ModelError(
            f"{name}: ends in a {model.layers[-1].activation.__name__}, so it returns probabilities.",
            cure="Leave the last activation out: the loss takes logits.",
            key="model.name",
        )
