"""The optimizer of a run, from its configuration."""

from __future__ import annotations

from typing import Any

import keras

from trainer import transfer
from trainer.config import OptimizerConfig, RingConfig, TrainConfig
from trainer.strategies import schedule
from trainer.strategies.compiled_update import compilable
from trainer.strategies.rate_factors import scale_rates


def build(config: TrainConfig, steps_per_epoch: int, model: keras.Model | None = None) -> keras.Optimizer:
    """Return a run's optimizer on one rank, with loss scaling for `mixed_float16`; see `Strategy.divided`.

    Args:
        config: the `train` section.
        steps_per_epoch: updates per epoch.
        model: the network, some of whose layers may have a learning rate of their own.

    Raises:
        ConfigError: `train.transfer` names layers that the network does not have.
    """
    rate = schedule.learning_rate(
        config.schedule,
        config.optimizer,
        config.global_batch,
        steps_per_epoch,
        config.epochs,
        accumulation=config.accumulation,
    )
    optimizer = plain(config.optimizer, rate, accumulation=config.accumulation)
    if model is not None:
        optimizer = scale_rates(optimizer, transfer.rate_factors(model, config.transfer))
    optimizer = compilable(optimizer)
    if config.precision == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    return optimizer


def ring_options(ring: RingConfig) -> dict[str, Any]:
    """Return options of `DistributedOptimizer` for this section; the rest is `launch.ring_environment`."""
    return {
        "compression": ring.compression,
        "reduction": ring.reduction,
        "bucket_mb": ring.bucket_mb,
        "gather": ring.algorithm == "gather",
    }


def plain(config: OptimizerConfig, rate: Any, *, accumulation: int = 1) -> keras.Optimizer:
    """Return Keras' own optimizer with these options; `rate` is a number or a schedule."""
    options: dict[str, Any] = {
        "learning_rate": rate,
        "clipnorm": config.clip_norm,
        "clipvalue": config.clip_value,
        "global_clipnorm": config.global_clip_norm,
        "gradient_accumulation_steps": accumulation if accumulation > 1 else None,
    }
    if config.weight_decay is not None:
        options["weight_decay"] = config.weight_decay
    if config.ema is not None:
        options |= {"use_ema": True, "ema_momentum": config.ema}
    if config.name == "sgd":
        return keras.optimizers.SGD(momentum=config.momentum, **options)
    return {"adam": keras.optimizers.Adam, "adamw": keras.optimizers.AdamW}[config.name](**options)
