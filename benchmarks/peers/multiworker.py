"""tf.distribute.MultiWorkerMirroredStrategy (its ring, over gRPC) with the same Keras network.

Run by `starting.py` as `python -m benchmarks.peers.multiworker PROCESS`. A rank has one
thread that computes and one that starts operations, or two where ranks are on several hosts, as ours do.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from benchmarks.peers import tensorflow_step, work
from benchmarks.peers.job import PeerProcess


def main() -> None:
    """Time what the process on the command line describes."""
    process = PeerProcess.from_json(sys.argv[1])
    starter = work.Starter()
    several_hosts = len(set(process.hosts)) > 1
    tf = tensorflow_step.tensorflow(process.job.options.get("starting_threads", 2 if several_hosts else 1))
    strategy = _strategy(tf, process)
    with strategy.scope():
        model, optimizer = work.network(process.job)
    replica = tensorflow_step.replica_step(process.job, model, optimizer, process.job.ranks)
    compiled = tf.function(lambda x, y: strategy.run(replica, args=(x, y)), autograph=False)
    batches = [
        tuple(tf.constant(part) for part in work.batch(process.job, number, process.number))
        for number in range(process.job.batches)
    ]

    def step(number: int) -> None:
        compiled(*batches[number % len(batches)]).numpy()

    work.measured(process, starter, step, model)


def _strategy(tf: Any, process: PeerProcess) -> Any:
    """The strategy; TensorFlow's default one, which distributes nothing, where there is one rank."""
    if process.job.ranks == 1:
        return tf.distribute.get_strategy()
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": list(process.addresses)}, "task": {"type": "worker", "index": process.number}}
    )
    communication = tf.distribute.experimental
    return tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=communication.CommunicationOptions(
            implementation=communication.CommunicationImplementation.RING,
            bytes_per_pack=process.job.options.get("bytes_per_pack", 0),
        )
    )


if __name__ == "__main__":
    main()
