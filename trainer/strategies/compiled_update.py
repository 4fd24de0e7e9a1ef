"""An optimizer's update as one function that XLA compiles, where that is faster.

An update is some twenty small operations for each variable. Handing them over one by one costs more than
computing them, on a GPU most of all; compiled, each variable is read and written once.
docs/decisions/0063-gpus-and-compilation.md has what was measured.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from trainer import processor
from trainer.errors import ConfigError
from trainer.ranks.agreement import Agreed
from trainer.ranks.world import World
from trainer.run_folder.run_record import UpdateOfRun
from trainer.strategies.saved_as import saved_as

# On processors an update of fewer numbers takes a few milliseconds, and compiling it a second or more.
LEAST = 1_000_000
# In fewer updates it does not save what trying takes: half a minute for DenseNet-121, of 364 variables.
FEW_UPDATES = 500
# Compiled, it must take at most this share of the time.
WORTH = 0.9
# Of weights that are updated by one function: as large as a bucket of gradients.
GROUP_BYTES = 4 * 2**20
_ROUNDS = 5


def compilable(optimizer: keras.Optimizer) -> keras.Optimizer:
    """Let an optimizer's update be compiled: see `set_compiled`. Until then nothing is different.

    The optimizer itself is changed, once, and returned; it is saved as Keras' own class. Clipping, decay,
    update and moving averages are compiled. What sums over ranks is not: it has to lie around this, as the
    classes of `DistributedOptimizer` and of placed owners do.

    Args:
        optimizer: any Keras 3 optimizer but a `LossScaleOptimizer`, whose inner one is meant.
    """
    if not hasattr(optimizer, "compiles"):
        kind: Any = type(optimizer)
        optimizer.__class__ = _compiling(kind)
    return optimizer


def set_compiled(optimizer: keras.Optimizer, compiled: bool) -> None:
    """Decide how steps that are traced from now on update; `optimizer` may be around a compilable one."""
    # Past Keras' tracking: it is no state.
    object.__setattr__(_inner(optimizer), "compiles", compiled)


def is_compiled(optimizer: keras.Optimizer) -> bool:
    """Return whether it was decided so."""
    return getattr(_inner(optimizer), "compiles", False)


@dataclass(frozen=True)
class Updated:
    """What one rank updates.

    Attributes:
        optimizers: that update it, or hand on to those that will how they do.
        variables: trainable ones; none where the rank owns nothing.
    """

    optimizers: tuple[keras.Optimizer, ...] = ()
    variables: tuple[Any, ...] = ()

    @property
    def weights(self) -> int:
        """How many numbers that are."""
        return sum(math.prod(v.shape) for v in self.variables)

    def devices(self, world: World) -> Devices:
        """Return what updates are computed on; a collective."""
        return Devices.of(world)

    def trial(self) -> Trial:
        """Time an update both ways; no collective."""
        return trial(self.optimizers[0], self.variables) if self.variables else Trial(0.0, 0.0)

    def compile(self, compiled: bool) -> None:
        """Update so from now on; before a step is traced, and no collective."""
        for one in self.optimizers:
            set_compiled(one, compiled)


@dataclass(frozen=True)
class Trial:
    """What one rank found.

    Attributes:
        plain_s: seconds of an update, uncompiled.
        compiled_s: compiled; infinite where it failed.
        fault: how it failed, one line; empty where it did not.
    """

    plain_s: float
    compiled_s: float
    fault: str = ""


def trial(optimizer: keras.Optimizer, variables: Sequence[Any]) -> Trial:
    """Time an update both ways on this rank's device; weights and state are afterwards what they were.

    Fastest of five, in turns: other work on the machine slows both, and each only sometimes.

    Args:
        optimizer: a built one, or one around it, of `compilable`.
        variables: those that it updates here.
    """
    inner = _inner(optimizer)
    gradients = [tf.zeros(v.shape, v.dtype) for v in variables]
    rate = tf.convert_to_tensor(inner.learning_rate)
    kept = [(v, v.numpy()) for v in (*inner.variables, *variables)]
    ways = (inner.plain_update, inner.compiled_update)
    timings: dict[Any, list[float]] = {
        tf.function(functools.partial(way, list(variables)), autograph=False, jit_compile=False): []
        for way in ways
    }
    fault = ""
    try:
        for update in timings:
            update(gradients, rate)  # traced and compiled
        for _ in range(_ROUNDS):
            for update, seconds in timings.items():
                seconds.append(_timed(update, gradients, rate))
    except (tf.errors.OpError, ValueError) as error:  # XLA's, such as without CUDA's libdevice
        fault = str(error).strip().partition("\n")[0][:200]
    finally:
        for variable, value in kept:
            variable.assign(value)
    fastest = [min(seconds, default=math.inf) for seconds in timings.values()]
    return Trial(fastest[0], math.inf if fault else fastest[1], fault)


@dataclass(frozen=True)
class Devices:
    """What all ranks compute on.

    Attributes:
        are_gpus: whether any rank has one.
        unlike: how they differ, where they do: XLA's code differs with the instructions, and all ranks must
            hold the same bits.
    """

    are_gpus: bool
    unlike: str = ""

    @classmethod
    def of(cls, world: World) -> Devices:
        """Ask all ranks; a collective."""
        everyones = world.allgather_object([bool(tf.config.list_logical_devices("GPU")), _place()])
        places = sorted({place for _, place in everyones})
        unlike = f"ranks compute on unlike devices ({'; '.join(places)[:200]})" if len(places) > 1 else ""
        return cls(any(gpu for gpu, _ in everyones), unlike)


def choose(
    setting: str,
    updated: Updated,
    world: World,
    *,
    before: bool | None = None,
    by_time: bool = True,
    updates: int | None = None,
) -> UpdateOfRun:
    """Decide for all ranks whether the update is compiled, and set it; a collective.

    Args:
        setting: `train.compile`.
        updated: by this rank.
        world: all ranks.
        before: how the run that goes on has updated; None for a new one.
        by_time: whether timing may decide, too; not where two runs must end with the same bits.
        updates: to come; None: not known.

    Returns:
        What was chosen and why, the same on every rank.

    Raises:
        Agreed: it was to be compiled, and cannot be on some rank.
    """
    devices = updated.devices(world)
    largest = max(world.allgather_object(updated.weights))
    why = ""
    if setting == "none":
        why = "train.compile is none"
    elif setting == "auto" and before is False:
        why = "as this run has updated so far"
    elif devices.unlike:
        why = devices.unlike
    elif setting == "auto" and before is None:
        if not devices.are_gpus and largest < LEAST:
            why = f"no process updates {LEAST:,} weights or more"
        elif updates is not None and updates < FEW_UPDATES:
            why = f"fewer than {FEW_UPDATES} updates are to come"
    if why:
        chosen = UpdateOfRun(compiled=False, why=why)
    else:
        mine = updated.trial()
        tried = [Trial(*one) for one in world.allgather_object(dataclasses.astuple(mine))]
        chosen = _judged(setting, before, by_time, tried)
    updated.compile(chosen.compiled)
    return chosen


def _judged(setting: str, before: bool | None, by_time: bool, tried: Sequence[Trial]) -> UpdateOfRun:
    """Decide by what all ranks found; all of them wait for the slowest."""
    plain, compiled = max(one.plain_s for one in tried), max(one.compiled_s for one in tried)
    times = {"plain_ms": _ms(plain), "compiled_ms": _ms(compiled)}
    fault = next((f"rank {rank}: {one.fault}" for rank, one in enumerate(tried) if one.fault), "")
    if fault and setting == "xla":
        raise Agreed(
            ConfigError(
                f"train.compile: XLA cannot compile the update ({fault}).",
                cure="Set train.compile=auto, which leaves uncompiled what cannot be compiled.",
                key="train.compile",
            )
        )
    if fault:
        return UpdateOfRun(compiled=False, why=f"XLA cannot compile it ({fault})", **times)
    if setting == "xla":
        return UpdateOfRun(compiled=True, why="train.compile is xla", **times)
    if before:
        return UpdateOfRun(compiled=True, why="as this run has updated so far", **times)
    if not by_time:
        return UpdateOfRun(compiled=True, why="it is large, and no timing decides", **times)
    if compiled > WORTH * plain:
        return UpdateOfRun(compiled=False, why="compiled it is hardly faster, or slower", **times)
    return UpdateOfRun(compiled=True, why="it is faster", **times)


def _ms(seconds: float) -> float | None:
    return round(1000 * seconds, 3) if math.isfinite(seconds) else None


def _timed(update: Callable[..., object], gradients: Sequence[Any], rate: Any) -> float:
    tf.test.experimental.sync_devices()
    began = time.perf_counter()
    update(gradients, rate)
    tf.test.experimental.sync_devices()
    return time.perf_counter() - began


def _place() -> str:
    """What decides the last bits of what is computed here."""
    gpus = [
        tf.config.experimental.get_device_details(one).get("device_name", "GPU")
        for one in tf.config.get_visible_devices("GPU")
    ]
    return gpus[0] if gpus else str(processor.here())


def _inner(optimizer: keras.Optimizer) -> Any:
    return getattr(optimizer, "inner_optimizer", optimizer)


@functools.cache
def _compiling(kind: Any) -> type:
    """A subclass of an optimizer class whose update may be compiled.

    Keras calls, in this order and perhaps within a condition: clip, decay, update; then it averages. Where
    the update is compiled, clipping and decay wait for it.
    """

    class Compiling(kind):
        compiles: bool = False
        # Of a subclass that clips by norms over several ranks: it has done so before the update.
        clips_over_ranks: bool = False
        _given_rate: Any = None

        def _clip_gradients(self, grads: Sequence[Any]) -> Any:
            return list(grads) if self.compiles and self._clips_within else super()._clip_gradients(grads)

        def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
            if not self.compiles:
                super()._apply_weight_decay(variables)

        def _backend_update_step(self, grads: Sequence[Any], vars: Sequence[Any], learning_rate: Any) -> None:
            if self.compiles:
                self.compiled_update(vars, [tf.convert_to_tensor(g) for g in grads], learning_rate)
            else:
                super()._backend_update_step(grads, vars, learning_rate)

        def _update_model_variables_moving_average(self, trainable_variables: Sequence[Any]) -> None:
            average = super()._update_model_variables_moving_average
            if self.compiles:
                tf.function(lambda: average(trainable_variables), autograph=False, jit_compile=True)()
            else:
                average(trainable_variables)

        def _get_current_learning_rate(self) -> Any:
            # Decay asks again: a schedule, which may hold what XLA does not know, is computed once, outside.
            return super()._get_current_learning_rate() if self._given_rate is None else self._given_rate

        @property
        def _clips_within(self) -> bool:
            """Whether each gradient is clipped by itself, so that it need not wait for the others."""
            return not (self.clips_over_ranks or self.global_clipnorm)

        def compiled_update(self, variables: Sequence[Any], grads: Sequence[Any], learning_rate: Any) -> None:
            """Update as `plain_update` does, by a compiled function for each group of variables."""
            functions = self.__dict__.setdefault("_compiled_updates", {})
            rate, at = tf.convert_to_tensor(learning_rate), 0
            for group in self._groups(variables):
                key = tuple(id(v) for v in group)
                if key not in functions:
                    update = functools.partial(self.plain_update, group)
                    functions[key] = tf.function(update, autograph=False, jit_compile=True)
                functions[key](list(grads[at : at + len(group)]), rate)
                at += len(group)

        def plain_update(self, variables: Sequence[Any], grads: Sequence[Any], learning_rate: Any) -> None:
            """Clip, decay and update, as Keras does; traced.

            Args:
                variables: trainable ones.
                grads: tensors of their shapes.
                learning_rate: a scalar.
            """
            if self._clips_within:
                grads = super()._clip_gradients(grads)
            object.__setattr__(self, "_given_rate", learning_rate)
            try:
                super()._apply_weight_decay(variables)
            finally:
                object.__setattr__(self, "_given_rate", None)
            super()._backend_update_step(grads, variables, learning_rate)

        def _groups(self, variables: Sequence[Any]) -> list[list[Any]]:
            """Neighbours of some MiB together: an update need not wait for all gradients of the network."""
            if kind._backend_update_step is not keras.Optimizer._backend_update_step:
                return [list(variables)]  # such as Nadam's, which changes a scalar once per update
            groups: list[list[Any]] = [[]]
            size = 0
            for variable in variables:
                if size >= GROUP_BYTES:
                    groups.append([])
                    size = 0
                groups[-1].append(variable)
                size += math.prod(variable.shape) * tf.as_dtype(variable.dtype).size
            return groups

    return saved_as(Compiling, kind)
