"""Which networks there are, by name; and a user's own, as 'module:function' or 'path/to/file.py:function'."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras.src.backend.common import global_state

from trainer.errors import ModelError
from trainer.models import own, small_maps
from trainer.models.network import SMALLEST, Function, Network

_NETWORKS: dict[str, Network] = {}


def register(
    name: str, *, dense: bool = False, dimensions: int = 3, smallest: int = SMALLEST, paper: str = ""
) -> Callable[[Function], Function]:
    """Make `function(input_shape, classes, *, width=..., ...) -> keras.Model` known as network `name`.

    Args:
        dense: it gives logits for each voxel, `(B, D, H, W, classes)`, not for the volume, `(B, classes)`.
        dimensions: 2 for a network of images `(H, W, C)`, which must take `(1, H, W, C)` as well.
        smallest: the least voxels that it needs along each side.
        paper: where it was published.
    """

    def decorate(function: Function) -> Function:
        known = _NETWORKS.get(name)
        if known is not None and known.function is not function:
            raise ModelError(
                f"There are two networks named {name!r}.", cure="Register yours under another name."
            )
        _NETWORKS[name] = Network(name, function, dense, dimensions, smallest, paper)
        return function

    return decorate


def names(*, dense: bool | None = None) -> tuple[str, ...]:
    """Return the names of all registered networks, sorted; of those with an output per voxel, or of the
    others.
    """
    return tuple(sorted(n.name for n in _NETWORKS.values() if dense in (None, n.dense)))


def describe(name: str) -> Network:
    """Return the network of that name, or a user's own as 'module:function' or 'file.py:function'.

    Raises:
        ModelError: unknown network.
    """
    if name in _NETWORKS:
        return _NETWORKS[name]
    if ":" in name:
        return Network(name, own.find(name))
    close = difflib.get_close_matches(name, names(), n=1, cutoff=0.5)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise ModelError(
        f"There is no network {name!r}.{hint}",
        cure=f"Known: {', '.join(names())}; or 'module:function' of your own.",
        key="model.name",
    )


def build(
    name: str,
    input_shape: Sequence[int],
    outputs: int,
    *,
    width: int | None = None,
    sync_batch_norm: bool = False,
    covariates: int = 0,
    dense: bool = False,
    **options: Any,
) -> keras.Model:
    """Build a network with new weights, which `keras.utils.set_random_seed` decides.

    Args:
        name: a registered network, 'module:function' or 'file.py:function'.
        input_shape: (D, H, W, C) of one volume; (H, W, C) too for a network of images.
        outputs: how many labels to tell apart; 1 for a regression.
        width: channels of the first stage; None for the network's own.
        sync_batch_norm: take the statistics of batch normalisation over all ranks.
        covariates: how many values the network takes beside the volume: see `with_covariates`.
        dense: outputs for each voxel, as segmentation needs them.
        options: further arguments of the network's function.

    Returns:
        A model from float `(B, D, H, W, C)` to float32 logits `(B, outputs)`, or `(B, D, H, W, outputs)`
        where `dense`. With covariates it takes [volume, covariates `(B, covariates)`]. Under bfloat16,
        convolutions of maps smaller than their kernel compute in float32.

    Raises:
        ModelError: no such network or option, a volume too small, one output per voxel asked of a
            network that gives one per volume or the reverse, covariates where they cannot be added, or a
            network of one's own that returns something else.
    """
    network = describe(name)
    check_outputs(network, outputs, dense=dense, fitting=names(dense=dense))
    if covariates < 0 or (covariates and dense):
        raise ModelError(
            f"{name}: {covariates} covariates with "
            + (
                "an output for each voxel: covariates need one output per volume."
                if dense
                else "the volume: must be at least 0."
            ),
            cure="Remove data.covariates from the configuration.",
            key="data.covariates",
        )
    shape = checked_shape(network, input_shape)
    if width is not None:
        options["width"] = width
    check_options(network, options)
    with own.errors_with_place(name):
        model = network.function(shape, outputs, **options)
    check_returned(name, model, shape, outputs, dense=dense)
    if covariates:
        model = with_covariates(name, model, covariates)
    if sync_batch_norm:
        model = _synchronised(name, model)
    small_maps.in_float32(model)
    return model


def outline(name: str, input_shape: Sequence[int], outputs: int, **rest: Any) -> keras.Model:
    """Build the model of `build` without values in its weights: to be counted, not to be called.

    It takes milliseconds where the first values of millions of weights take seconds.
    """
    waiting = global_state.get_global_attribute("uninitialized_variables", [])[:]
    try:
        with keras.StatelessScope(initialize_variables=False):
            return build(name, input_shape, outputs, **rest)
    finally:
        # Keras would give them values when its next scope of this kind ends: gigabytes, of a large network.
        global_state.set_global_attribute("uninitialized_variables", waiting)


def _synchronised(name: str, model: keras.Model) -> keras.Model:
    """The same model, weights included, with synchronous in place of plain batch normalisation."""
    plain = [layer for layer in model._flatten_layers() if type(layer) is keras.layers.BatchNormalization]
    if not plain:
        return model
    from trainer.models.batch_norm import SyncBatchNormalization

    def exchange(layer: keras.layers.Layer) -> keras.layers.Layer:
        kind = SyncBatchNormalization if type(layer) is keras.layers.BatchNormalization else type(layer)
        return kind.from_config(layer.get_config())

    if any(layer not in model.layers for layer in plain):
        raise ModelError(
            f"{name}: has batch normalisation inside another layer or model ({plain[0].name}), "
            "where it cannot be made synchronous.",
            cure="Set train.sync_batch_norm=false, or make it with trainer.models.layers.normalisation.",
            key="train.sync_batch_norm",
        )
    clone = keras.models.clone_model(model, clone_function=exchange)
    clone.set_weights(model.get_weights())
    return clone


def with_covariates(name: str, model: keras.Model, count: int) -> keras.Model:
    """Return the same network, whose last layer also sees `count` covariates.

    The features before the last layer, `(B, F)`, are concatenated with the covariates, `(B, count)`, and a
    new last layer of the same kind takes both. This late fusion is the field's plain baseline ("Concat-1FC"
    in Poelsterl et al., arXiv 2107.05990, who go beyond it): it works with every network, adds
    `count * outputs` weights only, and those weights can be read as those of a logistic or linear regression
    on the covariates beside the image. A dropout of the features comes before, so no covariate is dropped.

    Scale the covariates first, to mean 0 and standard deviation 1 of the training split: beside features of
    about that size, an age in years would swamp them.

    Args:
        model: from a volume to `(B, outputs)`, with a `keras.layers.Dense` on `(B, F)` as last layer.
        count: how many covariates there are, at least 1.

    Returns:
        A model that takes [volume, covariates float32 `(B, count)`]; the second input is named "covariates".

    Raises:
        ModelError: the last layer is no Dense layer on a vector of features.
    """
    last = model.layers[-1]
    if (
        not isinstance(last, keras.layers.Dense)
        or last.output is not model.outputs[0]
        or last.input.ndim != 2
    ):
        raise ModelError(
            f"{name}: ends in {type(last).__name__} ({last.name}), where covariates cannot be added.",
            cure="They can where the last layer is a Dense layer on pooled or flattened features.",
            key="data.covariates",
        )
    table = keras.Input((count,), name="covariates", dtype="float32")
    joined = keras.layers.Concatenate(name="head_covariates", dtype="float32")([last.input, table])
    logits = keras.layers.Dense.from_config(last.get_config())(joined)
    return keras.Model([*model.inputs, table], logits, name=model.name)


# Checks of a network's arguments and of what it returned, before anything is trained.


def checked_shape(network: Network, shape: Sequence[int]) -> tuple[int, ...]:
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


def check_outputs(network: Network, count: int, *, dense: bool, fitting: Sequence[str]) -> None:
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


def check_options(network: Network, options: dict[str, Any]) -> None:
    """Check the names of the options, and the width.

    Raises:
        ModelError: the network has no such option.
    """
    accepted = network.options
    if network.takes_any_option:
        return
    for option in options:
        if option not in accepted:
            close = difflib.get_close_matches(option, accepted, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ModelError(
                f"{network.name}: has no option {option!r}.{hint}",
                cure=f"It takes: {', '.join(accepted) or 'no options'}.",
                key=f"model.options.{option}",
            )
    width = options.get("width")
    if width is not None and (not isinstance(width, int) or width < 1):
        raise ModelError(
            f"{network.name}: width is {width!r}: it must be a whole number of channels, at least 1.",
            key="model.width",
        )


def check_returned(name: str, model: Any, shape: tuple[int, ...], count: int, *, dense: bool) -> None:
    """Check what a network's function returned.

    Raises:
        ModelError: not a model from one sample of `shape` to `count` float32 logits (per voxel, where
            `dense`).
    """
    if not isinstance(model, keras.Model):
        what = "nothing" if model is None else f"a value of the type {type(model).__name__}"
        raise ModelError(
            f"{name}: returned {what}, not a keras.Model.",
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
    taken, returned = model.input_shape, model.output_shape
    if not isinstance(taken, tuple) or tuple(taken)[1:] != shape:
        raise ModelError(
            f"{name}: takes inputs of shape {taken}, but the volumes are {shape}.", key="model.name"
        )
    expected = (None, *shape[:-1], count) if dense else (None, count)
    if returned != expected:
        each = "one logit per class" + (" and voxel" if dense else "")
        raise ModelError(
            f"{name}: returns outputs of shape {returned}; {expected} is wanted, {each}.", key="model.name"
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
