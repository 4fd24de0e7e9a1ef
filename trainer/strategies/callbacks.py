"""Callbacks that make `model.fit` of a user's own script right on several ranks.

`callbacks(own)` puts them around the user's: before them what gives all ranks the same start and the same
metrics, after them what makes all ranks stop together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from trainer.errors import ConfigError
from trainer.ranks import world as worlds
from trainer.strategies import compiled_update, guards
from trainer.strategies.compiled_update import Updated
from trainer.strategies.data import broadcast_state, broadcast_variables
from trainer.strategies.distributed_optimizer import is_distributed


def callbacks(own: Sequence[keras.callbacks.Callback] = ()) -> list[keras.callbacks.Callback]:
    """Return callbacks for `model.fit`, with the user's own among them.

    All ranks start from rank 0's weights and optimizer state; metrics in the logs are those of all ranks'
    samples, so that `EarlyStopping` or `ReduceLROnPlateau` among `own` decide the same everywhere; after
    every epoch weights are compared over ranks and looked at for NaN; a stop that any rank asks for takes
    effect at the end of the epoch, on all ranks.

    Args:
        own: run on every rank, in this order. What writes files belongs to one rank:
            `[keras.callbacks.ModelCheckpoint(...)] if trainer.rank() == 0 else []`.

    Raises:
        WorldError: `trainer.init` was not called.
    """
    world = worlds.current()
    return [SameStart(world), CommonMetrics(world), TrainingGuard(world), *own, CommonStop(world)]


class SameStart(keras.callbacks.Callback):
    """Gives every rank rank 0's weights and optimizer state before the first step.

    A model that Keras builds from its first batch has no weights before: then right after the first step. A
    step of one's own may update by several optimizers, which the model has as attributes.
    """

    def __init__(self, world: worlds.World) -> None:
        super().__init__()
        self._world = world
        self._waits_for_weights = False
        self._compiles = False

    def set_model(self, model: keras.Model) -> None:
        """Keep Keras from compiling the step with XLA, which knows nothing of Horovod's operations.

        What comes after them, the update, is compiled in its place: see `compiled_update.choose`.
        """
        super().set_model(model)
        if self._world.size > 1 and getattr(model, "jit_compile", False):
            self._compiles = True
            model.jit_compile = False
            model.train_function = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Check that the optimizer reduces, and broadcast.

        Raises:
            ConfigError: several ranks, but an optimizer would leave each on its own.
        """
        optimizers = _optimizers(self.model)
        if self._world.size > 1:
            _check(optimizers)
        self._waits_for_weights = not self.model.built
        if self._waits_for_weights:
            return
        if list(optimizers) == ["optimizer"] and not self.model.optimizer.built:
            self.model.optimizer.build(self.model.trainable_variables)
        self._broadcast()
        cannot = not self._compiles or list(optimizers) != ["optimizer"]
        if not self._world.any(cannot):
            mine = Updated((self.model.optimizer,), tuple(self.model.trainable_variables))
            # Started again, a script goes on as it did: no timing decides.
            compiled_update.choose("auto", mine, self._world, by_time=False)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcast what the first step has built."""
        if self._waits_for_weights:
            self._waits_for_weights = False
            self._broadcast()

    def _broadcast(self) -> None:
        broadcast_state(self.model, None, self._world)
        for optimizer in _optimizers(self.model).values():
            broadcast_variables(optimizer.variables, self._world)


def _optimizers(model: keras.Model) -> dict[str, keras.Optimizer]:
    """Optimizers of a model by attribute; but for Keras' own choice, beside others that a step updates by."""
    optimizers = {
        name: one for name, one in vars(model).items() if isinstance(one, keras.optimizers.Optimizer)
    }
    chosen: Any = optimizers.get("optimizer")
    if len(optimizers) > 1 and type(chosen) is keras.optimizers.RMSprop:
        # As `compile()` without an optimizer has it.
        settings = keras.optimizers.RMSprop().get_config() | {"name": chosen.name}
        if chosen.get_config() == settings:
            del optimizers["optimizer"]
    return optimizers


def _check(optimizers: dict[str, keras.Optimizer]) -> None:
    plain = {name: type(one).__name__ for name, one in optimizers.items() if not is_distributed(one)}
    if not plain:
        return
    if list(optimizers) == ["optimizer"]:
        raise ConfigError(
            f"model.compile got an optimizer ({plain['optimizer']}) that reduces nothing: "
            "every rank would train a network of its own.",
            cure="model.compile(optimizer=trainer.DistributedOptimizer(...)); under mixed_float16 set "
            "the policy before that.",
        )
    named = ", ".join(f"{name} ({kind})" for name, kind in plain.items())
    raise ConfigError(
        f"Optimizers of the model reduce nothing: {named}; every rank would train networks of its own.",
        cure="Wrap each: trainer.DistributedOptimizer(...)",
    )


class CommonMetrics(keras.callbacks.Callback):
    """Replaces each rank's metrics in the epoch's logs by those of all ranks' samples.

    The state of Keras' metrics (sums and counts) is added over ranks and the result computed from that, so
    it is exact for unequal counts and for metrics that are no averages, such as AUC. A metric whose state
    cannot be added does not fit here.
    """

    def __init__(self, world: worlds.World) -> None:
        super().__init__()
        self._world = world
        self._training: dict[str, float] | None = None
        self._validation: dict[str, float] | None = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Forget the epoch before."""
        self._training = self._validation = None

    def on_test_begin(self, logs: Any = None) -> None:
        """Read the training metrics: validation is about to reset them."""
        if self._training is None:
            self._training = self._reduced()

    def on_test_end(self, logs: Any = None) -> None:
        """Read the validation metrics."""
        self._validation = self._reduced()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Put the common values in place of this rank's."""
        if self._world.size == 1 or logs is None:
            return
        training = self._training if self._training is not None else self._reduced()
        logs.update({name: value for name, value in training.items() if name in logs})
        for name, value in (self._validation or {}).items():
            logs[f"val_{name}"] = value

    def _reduced(self) -> dict[str, float]:
        if self._world.size == 1:
            return {}
        variables = self.model.metrics_variables
        values = [v.value for v in variables]
        sums = self._world.grouped_allreduce(values, "sum", name="metrics") if values else []
        for variable, total in zip(variables, sums, strict=True):
            variable.assign(total)
        return {
            name: float(np.asarray(value))
            for name, value in self.model.get_metrics_result().items()
            if np.ndim(value) == 0
        }


class TrainingGuard(keras.callbacks.Callback):
    """Ends the run when ranks hold different weights, or when a number is no longer finite."""

    def __init__(self, world: worlds.World) -> None:
        super().__init__()
        self._world = world

    def on_test_begin(self, logs: Any = None) -> None:
        """Validate with one set of moving statistics on all ranks."""
        guards.average_statistics(self.model, self._world)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Compare; raises DivergenceError or NotFiniteError on every rank."""
        guards.average_statistics(self.model, self._world)
        loss = float((logs or {}).get("loss", 0.0))
        guards.check_finite(self.model, self._world, loss=loss, where=f"in epoch {epoch + 1}")
        guards.check_divergence(self.model, self._world)


class CommonStop(keras.callbacks.Callback):
    """Lets a stop that one rank asks for take effect on all, at the end of the epoch."""

    def __init__(self, world: worlds.World) -> None:
        super().__init__()
        self._world = world
        self._asked = False

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Hold back a stop within the epoch: the other ranks would wait for this one for ever."""
        if self._world.size > 1 and self.model.stop_training:
            self._asked, self.model.stop_training = True, False

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Agree."""
        self.model.stop_training = self._world.any(self._asked or self.model.stop_training)
        self._asked = False
