"""What servers must know to apply a network's updates: sizes and rules, as JSON; neither network nor data."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from trainer.config.strategy import ServerConfig
from trainer.errors import ConfigError
from trainer.strategies.servers.layout import Bundle, ServerPiece, bundles, layout, message_bytes

# Rules that treat each element on its own: a piece of a variable is updated as the whole would be.
_ELEMENTWISE = frozenset(
    {"SGD", "RMSprop", "Adam", "AdamW", "Adadelta", "Adagrad", "Adamax", "Nadam", "Ftrl", "Lion"}
)


@dataclass(frozen=True)
class VariableSpec:
    """One trainable variable.

    Attributes:
        path: its Keras path.
        name: its Keras name.
        shape: of the whole variable.
        dtype: such as 'float32'.
        decays: whether weight decay acts on it.
        rate_factor: what its learning rate is multiplied by.
        constraint: Keras' configuration of its constraint, or None.
    """

    path: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    decays: bool = True
    rate_factor: float = 1.0
    constraint: dict[str, Any] | None = None

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def width(self) -> int:
        """Bytes per element."""
        return int(keras_dtype(self.dtype).itemsize)


@dataclass(frozen=True)
class ServerJob:
    """A network's updates, divided among servers.

    Attributes:
        variables: trainable ones, in the network's order.
        optimizer: Keras' configuration, without what acts before the update: see `describe`.
        workers: whose gradients are averaged.
        servers: among whom the variables are divided.
        piece_bytes: most bytes of a message.
        whole: variables are not cut.
        global_clip_norm: largest norm of all mean gradients together.
        accumulation: micro-batches per update.
    """

    variables: tuple[VariableSpec, ...]
    optimizer: dict[str, Any]
    workers: int
    servers: int
    piece_bytes: int
    whole: bool
    global_clip_norm: float | None = None
    accumulation: int = 1

    def pieces(self) -> tuple[ServerPiece, ...]:
        """Return which server holds what."""
        return layout(
            [v.size for v in self.variables],
            self.servers,
            piece_bytes=self.piece_bytes,
            whole=self.whole,
            widths=[v.width for v in self.variables],
        )

    def bundles(self) -> tuple[Bundle, ...]:
        """Return the messages in which it travels."""
        return bundles(
            self.pieces(),
            piece_bytes=self.piece_bytes,
            widths=[v.width for v in self.variables],
            kinds=[v.dtype for v in self.variables],
        )

    def json(self) -> dict[str, Any]:
        """Return the job as a JSON object."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> ServerJob:
        """Return the job of what `json` returned."""
        variables = tuple(VariableSpec(**{**v, "shape": tuple(v["shape"])}) for v in fields["variables"])
        return cls(**{**fields, "variables": variables})


def keras_dtype(name: str) -> np.dtype[Any]:
    """Return NumPy's type for Keras' name of one, bfloat16 included."""
    import tensorflow as tf

    return np.dtype(tf.as_dtype(name).as_numpy_dtype)


def describe(
    optimizer: keras.Optimizer,
    variables: Sequence[Any],
    server: ServerConfig,
    *,
    workers: int,
    one_host: bool = False,
) -> ServerJob:
    """Describe an optimizer and the variables it was built for, as servers need it.

    Args:
        optimizer: no `LossScaleOptimizer`, but the one inside.
        variables: the network's trainable ones.
        server: the `train.strategy` section.
        workers: whose gradients are averaged.
        one_host: workers and servers share a host.

    Raises:
        ConfigError: servers cannot do what the optimizer does.
    """
    if any(getattr(v, "overwrite_with_gradient", False) for v in variables):
        raise ConfigError(
            "float8 training keeps scales that no server can update.",
            cure="Use float32, mixed_bfloat16 or mixed_float16.",
        )
    accumulation = optimizer.gradient_accumulation_steps or 1
    if accumulation > 1 and optimizer.use_ema and optimizer.ema_overwrite_frequency:
        raise ConfigError(
            "Weights that are overwritten by their average between the micro-batches of one update cannot "
            "be kept on servers.",
            cure="Leave out ema_overwrite_frequency or gradient_accumulation_steps; or train.strategy=data.",
        )
    factors = getattr(optimizer, "rate_factors", {})
    described = tuple(
        VariableSpec(
            path=v.path,
            name=v.name,
            shape=tuple(v.shape),
            dtype=v.dtype,
            decays=bool(optimizer._use_weight_decay(v)),
            rate_factor=float(factors.get(v.path, 1.0)),
            constraint=keras.constraints.serialize(v.constraint) if v.constraint is not None else None,
        )
        for v in variables
    )
    elementwise = type(optimizer).__module__ == "keras.optimizers" or type(optimizer).__module__.startswith(
        "keras.src.optimizers"
    )
    elementwise = elementwise and type(optimizer).__name__ in _ELEMENTWISE
    serialized = keras.optimizers.serialize(optimizer)
    # A worker unscales before it sends; servers clip by the global norm together.
    serialized["config"] |= {"loss_scale_factor": None, "global_clipnorm": None}
    return ServerJob(
        variables=described,
        optimizer=json.loads(json.dumps(serialized)),
        workers=workers,
        servers=server.count,
        piece_bytes=message_bytes(server, sum(v.size * v.width for v in described), one_host=one_host),
        whole=not elementwise
        or optimizer.clipnorm is not None
        or any(v.constraint is not None for v in described),
        global_clip_norm=optimizer.global_clipnorm,
        accumulation=accumulation,
    )
