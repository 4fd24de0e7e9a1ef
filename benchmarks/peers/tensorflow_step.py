"""What both peers of tf.distribute have in common: threads, and a training step that runs under a strategy.

A custom loop: `fit` of Keras 3 knows no parameter servers. The step is compiled as ours is (`tf.function`),
and the optimizer is Keras' own, which adds the gradients of all replicas up where a strategy has several.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.peers import work
from benchmarks.peers.job import PeerJob


def tensorflow(starting_threads: int) -> Any:
    """Return TensorFlow with one compute thread and so many that start operations."""
    from trainer.quiet import import_tensorflow

    tf = import_tensorflow()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(starting_threads)
    return tf


def replica_step(job: PeerJob, model: Any, optimizer: Any, replicas: int) -> Callable[[Any, Any], Any]:
    """Return a replica's training step: from volumes and labels to its mean loss, a float32 scalar.

    Args:
        job: whose network it is.
        model: under the strategy's scope.
        optimizer: built under the strategy's scope.
        replicas: among which the strategy adds gradients up.
    """
    import tensorflow as tf

    from trainer.tasks import losses

    loss_of = losses.dice_cross_entropy() if work.is_dense(job) else losses.cross_entropy()

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(loss_of(y, model(x, training=True)))
            share = loss / replicas
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(share, [v.value for v in variables]), variables)
        return loss

    return step
