"""Which networks there are, by name; and a user's own, as 'module:function' or 'path/to/file.py:function'."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from trainer.errors import ModelError
from trainer.models import own

Function = Callable[..., keras.Model]

# Four halvings of 16 voxels leave one: below that a stage would only see its own padding.
SMALLEST = 16


@dataclass(frozen=True)
class Network:
    """A network that can be built by name."""

    name: str
    function: Function

    @property
    def summary(self) -> str:
        """The first line of the function's docstring."""
        return (inspect.getdoc(self.function) or "").partition("\n")[0]

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments and their defaults, `width` among them."""
        parameters = inspect.signature(self.function).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}

    @property
    def takes_any_option(self) -> bool:
        """Whether the function ends in **options, so that we cannot check them."""
        return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(self.function).parameters.values())


_NETWORKS: dict[str, Network] = {}


def register(name: str) -> Callable[[Function], Function]:
    """Make `function(input_shape, classes, *, width=..., ...) -> keras.Model` known as network `name`."""

    def decorate(function: Function) -> Function:
        known = _NETWORKS.get(name)
        if known is not None and known.function is not function:
            raise ModelError(
                f"There are two networks named {name!r}.", cure="Register yours under another name."
            )
        _NETWORKS[name] = Network(name, function)
        return function

    return decorate


def names() -> tuple[str, ...]:
    """The names of all registered networks, sorted."""
    return tuple(sorted(_NETWORKS))


def describe(name: str) -> Network:
    """The network of that name, or a user's own as 'module:function' or 'file.py:function'.

    Raises:
        ModelError: there is none.
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
    )


def build(
    name: str,
    input_shape: Sequence[int],
    classes: int,
    *,
    width: int | None = None,
    sync_batch_norm: bool = False,
    **options: Any,
) -> keras.Model:
    """Build a network with new weights, which `keras.utils.set_random_seed` decides.

    Args:
        name: a registered network, 'module:function' or 'file.py:function'.
        input_shape: (D, H, W, C) of one volume.
        classes: how many labels to tell apart.
        width: channels of the first stage; None for the network's own.
        sync_batch_norm: take the statistics of batch normalisation over all ranks.
        options: further arguments of the network's function.

    Returns:
        A model from float `(B, D, H, W, C)` to float32 logits `(B, classes)`.

    Raises:
        ModelError: no such network or option, a volume too small, or a network of one's own that returns
            something else.
    """
    network = describe(name)
    shape = _checked_shape(network, input_shape)
    if classes < 2:
        raise ModelError(f"{name}: {classes} class(es): a classifier tells at least two apart.")
    if width is not None:
        options["width"] = width
    _check_options(network, options)
    with own.told_with_place(name):
        model = network.function(shape, classes, **options)
    _check_model(name, model, shape, classes)
    return _synchronised(name, model) if sync_batch_norm else model


def _checked_shape(network: Network, input_shape: Sequence[int]) -> tuple[int, ...]:
    shape = tuple(int(side) for side in input_shape)
    if len(shape) != 4 or min(shape) < 1:
        raise ModelError(
            f"{network.name}: input of shape {shape}: a volume has a depth, height, width and channels."
        )
    if network.name in _NETWORKS and min(shape[:3]) < SMALLEST:
        size = "x".join(map(str, shape[:3]))
        raise ModelError(
            f"{network.name}: volumes of {size} voxels are too small: each side needs at least {SMALLEST}.",
            cure=f"Import the images again with `--size {SMALLEST}` or more.",
        )
    return shape


def _check_options(network: Network, options: dict[str, Any]) -> None:
    known = network.options
    if network.takes_any_option:
        return
    for option in options:
        if option not in known:
            close = difflib.get_close_matches(option, known, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ModelError(
                f"{network.name}: has no option {option!r}.{hint}",
                cure=f"It takes: {', '.join(known) or 'no options'}.",
            )
    width = options.get("width")
    if width is not None and (not isinstance(width, int) or width < 1):
        raise ModelError(
            f"{network.name}: width is {width!r}: it must be a whole number of channels, at least 1."
        )


def _check_model(name: str, model: Any, shape: tuple[int, ...], classes: int) -> None:
    if not isinstance(model, keras.Model):
        raise ModelError(f"{name}: returned {type(model).__name__}, not a keras.Model.")
    taken, given = model.input_shape, model.output_shape
    if not isinstance(taken, tuple) or tuple(taken)[1:] != shape:
        raise ModelError(f"{name}: takes inputs of shape {taken}, but the volumes are {shape}.")
    if tuple(given) != (None, classes):
        raise ModelError(
            f"{name}: returns outputs of shape {given}; {(None, classes)} is wanted, one logit per class."
        )
    if keras.backend.standardize_dtype(model.output.dtype) != "float32":
        raise ModelError(
            f"{name}: returns logits of type {model.output.dtype}.",
            cure="Make its last layer with dtype='float32'.",
        )
    if getattr(model.layers[-1], "activation", None) in (
        keras.activations.softmax,
        keras.activations.sigmoid,
    ):
        raise ModelError(
            f"{name}: ends in a {model.layers[-1].activation.__name__}, so it returns probabilities.",
            cure="Leave the last activation out: the loss takes logits.",
        )


def _synchronised(name: str, model: keras.Model) -> keras.Model:
    """The same model, weights included, with synchronous in place of plain batch normalisation."""
    plain = [layer for layer in model._flatten_layers() if type(layer) is keras.layers.BatchNormalization]
    if not plain:
        return model
    from trainer.strategies.batch_norm import SyncBatchNormalization

    def exchange(layer: keras.layers.Layer) -> keras.layers.Layer:
        kind = SyncBatchNormalization if type(layer) is keras.layers.BatchNormalization else type(layer)
        return kind.from_config(layer.get_config())

    if any(layer not in model.layers for layer in plain):
        raise ModelError(
            f"{name}: has batch normalisation inside of another layer or model ({plain[0].name}), "
            "where it cannot be made synchronous.",
            cure="Set train.sync_batch_norm=false, or make it with trainer.models.layers.normalisation.",
        )
    clone = keras.models.clone_model(model, clone_function=exchange)
    clone.set_weights(model.get_weights())
    return clone
