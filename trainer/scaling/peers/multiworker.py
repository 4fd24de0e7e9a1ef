"""tf.distribute.MultiWorkerMirroredStrategy (its ring, over gRPC) with the same Keras network.

Run by `starting` as `python -m trainer.scaling.peers.multiworker TASK`. A rank has one thread that computes
and one that starts operations, or two where ranks are on several hosts, as ours do.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from trainer.scaling.peers import tensorflow_step, work
from trainer.scaling.peers.job import Task


def main() -> None:
    """Time what the task on the command line describes."""
    task = Task.from_json(sys.argv[1])
    starter = work.Starter()
    several_hosts = len(set(task.hosts)) > 1
    tf = tensorflow_step.tensorflow(task.job.options.get("starting_threads", 2 if several_hosts else 1))
    strategy = _strategy(tf, task)
    with strategy.scope():
        model, optimizer = work.network(task.job)
    replica = tensorflow_step.replica_step(task.job, model, optimizer, task.job.ranks)
    compiled = tf.function(lambda x, y: strategy.run(replica, args=(x, y)), autograph=False)
    batches = [
        tuple(tf.constant(part) for part in work.batch(task.job, number, task.number))
        for number in range(task.job.batches)
    ]

    def step(number: int) -> None:
        compiled(*batches[number % len(batches)]).numpy()

    work.measured(task, starter, step, model)


def _strategy(tf: Any, task: Task) -> Any:
    """The strategy; TensorFlow's default one, which distributes nothing, where there is one rank."""
    if task.job.ranks == 1:
        return tf.distribute.get_strategy()
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": list(task.addresses)}, "task": {"type": "worker", "index": task.number}}
    )
    communication = tf.distribute.experimental
    return tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=communication.CommunicationOptions(
            implementation=communication.CommunicationImplementation.RING,
            bytes_per_pack=task.job.options.get("bytes_per_pack", 0),
        )
    )


if __name__ == "__main__":
    main()
