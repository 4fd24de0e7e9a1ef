"""What a server holds of one bundle, and how an update is applied to it.

Every bundle is a small network of its own under a real Keras optimizer of the run's configuration: rules,
slots, schedules, averages, decay and exclusions are Keras' own. A piece that was cut out of a variable is a
flat variable with the whole one's name; an uncut one keeps its shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.errors import ConfigError
from trainer.strategies import schedule  # noqa: F401  # registers the schedule that a job may name
from trainer.strategies import slots as slots_
from trainer.strategies.compiled_update import Trial, compilable, is_compiled, set_compiled, trial
from trainer.strategies.rate_factors import scale_rates
from trainer.strategies.servers.job import ServerJob, keras_dtype
from trainer.strategies.servers.layout import Bundle, ServerPiece


class BundleState:
    """Weights and optimizer state of one bundle.

    Raises:
        ConfigError: the optimizer is unknown on this host, or cannot be divided.
    """

    def __init__(self, bundle: Bundle, job: ServerJob) -> None:
        self.bundle = bundle
        self.dtype = keras_dtype(job.variables[bundle.pieces[0].variable].dtype)
        self._accumulation = job.accumulation
        with tf.device("CPU:0"):
            self._variables = [_variable(piece, job) for piece in bundle.pieces]
            self._optimizer = compilable(_optimizer(job, bundle, self._variables))
            self._slots = slots_.build(self._optimizer, self._variables)
        self._trace()

    def trial(self) -> Trial:
        """Time an update both ways; weights and state are afterwards what they were."""
        with tf.device("CPU:0"):
            return trial(self._optimizer, self._variables)

    def compile(self, compiled: bool) -> None:
        """Let XLA compile updates from now on, or no longer."""
        if compiled != is_compiled(self._optimizer):
            set_compiled(self._optimizer, compiled)
            self._trace()

    def apply(self, gradient: np.ndarray, scale: float = 1.0) -> np.ndarray:
        """Apply one update.

        Args:
            gradient: mean gradient `(size,)` of the bundle's pieces, in their type.
            scale: what it is multiplied by first: see `clip_scale`.

        Returns:
            The new weights `(size,)`; another array each time.
        """
        with tf.device("CPU:0"):
            weights: np.ndarray = self._update(tf.constant(gradient), tf.constant(scale, tf.float32)).numpy()
        return weights

    def weights(self) -> np.ndarray:
        """Return a copy of the weights `(size,)`."""
        return np.concatenate([np.ravel(np.asarray(v.value)) for v in self._variables])

    @property
    def updates(self) -> int:
        """Updates so far."""
        return int(np.asarray(self._slots.common[0].value)) // self._accumulation

    def state(self) -> np.ndarray:
        """Return all as bytes, uint8 `(n,)`: each piece's weights and slots, then the common scalars."""
        return packed(self._all())

    def set_state(self, stored: np.ndarray) -> None:
        """Take over what `state` returned, or what a worker with the same layout sent."""
        unpack(stored, self._all())

    def _all(self) -> list[Any]:
        own = [part for v, of in zip(self._variables, self._slots.of, strict=True) for part in (v, *of)]
        return [*own, *self._slots.common]

    def _trace(self) -> None:
        # Now: the first step is not longer than the others.
        self._update = tf.function(self._update_step, autograph=False).get_concrete_function(
            tf.TensorSpec([self.bundle.size], self.dtype), tf.TensorSpec([], tf.float32)
        )

    def _update_step(self, gradient: Any, scale: Any) -> Any:
        gradient = gradient * tf.cast(scale, gradient.dtype) * self._accumulation
        parts = tf.split(gradient, [piece.size for piece in self.bundle.pieces])
        gradients = [tf.reshape(g, v.shape) for g, v in zip(parts, self._variables, strict=True)]
        # Workers have accumulated; Keras counts, averages and divides by micro-batches.
        for _ in range(self._accumulation - 1):
            self._optimizer.apply([tf.zeros_like(g) for g in gradients], self._variables)
        self._optimizer.apply(gradients, self._variables)
        return tf.concat([tf.reshape(v.value, [-1]) for v in self._variables], 0)


def clip_scale(squared_norm: float, limit: float | None) -> float:
    """Return the factor that limits the gradients' norm to `limit`, as Keras computes it."""
    if limit is None:
        return 1.0
    norm = np.sqrt(np.float32(squared_norm))
    if not np.isfinite(norm):
        return float("nan")
    return float(np.float32(limit) * min(np.float32(1.0) / norm, np.float32(1.0 / limit))) if norm else 1.0


def packed(variables: Sequence[Any]) -> np.ndarray:
    """Return the bytes of variables, one after the other, uint8 `(n,)`."""
    return np.concatenate([_bytes(np.asarray(v.value)) for v in variables])


def unpack(stored: np.ndarray, variables: Sequence[Any]) -> None:
    """Put bytes back into variables of the same shapes and types.

    Raises:
        ValueError: there are more or fewer bytes.
    """
    offset = 0
    for variable in variables:
        dtype = keras_dtype(variable.dtype)
        size = int(np.prod(variable.shape, dtype=np.int64)) * dtype.itemsize
        part = stored[offset : offset + size]
        if part.size != size:
            raise ValueError("the state has fewer bytes than its variables")
        variable.assign(np.frombuffer(part.tobytes(), dtype).reshape(tuple(variable.shape)))
        offset += size
    if offset != stored.size:
        raise ValueError("the state has more bytes than its variables")


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)


def _variable(piece: ServerPiece, job: ServerJob) -> keras.Variable:
    spec = job.variables[piece.variable]
    shape = spec.shape if piece.size == spec.size else (piece.size,)
    variable = keras.Variable(np.zeros(shape, keras_dtype(spec.dtype)), dtype=spec.dtype, name=spec.name)
    # Rate factors and some optimizers go by the path, which Keras makes of where a variable was made.
    variable._path = spec.path
    if spec.constraint is not None:
        variable.constraint = keras.constraints.deserialize(spec.constraint)
    return variable


def _optimizer(job: ServerJob, bundle: Bundle, variables: Sequence[Any]) -> keras.Optimizer:
    try:
        optimizer = keras.saving.deserialize_keras_object(job.optimizer)
    except (ValueError, TypeError, ImportError) as error:
        raise ConfigError(
            f"A server cannot make the optimizer {job.optimizer.get('class_name')!r} "
            f"({str(error).partition(chr(10))[0]}).",
            cure="Register its class with keras.saving.register_keras_serializable in a module that "
            "servers can import.",
        ) from None
    specs = [job.variables[piece.variable] for piece in bundle.pieces]
    optimizer.exclude_from_weight_decay(
        var_list=[v for v, spec in zip(variables, specs, strict=True) if not spec.decays]
    )
    factors = {spec.path: spec.rate_factor for spec in specs if spec.rate_factor != 1.0}
    return scale_rates(optimizer, factors)
