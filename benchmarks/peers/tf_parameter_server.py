"""tf.distribute.ParameterServerStrategy with the same Keras network: asynchronous, workers never wait.

Run by `starting.py` as `python -m benchmarks.peers.tf_parameter_server PROCESS`, once for each
worker, each server and the coordinator, which hands out steps. Variables go to servers in turn, whole. Every
process has one thread that computes and two that start operations: with one, a worker hangs in its first
step. All workers train on the same batches (TensorFlow gives a worker's dataset no number of the worker).
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.peers import tensorflow_step, work
from benchmarks.peers.job import PeerProcess

_KINDS = {"rank": "worker", "server": "ps", "coordinator": "chief"}


def main() -> None:
    """Serve, work or coordinate, as the process on the command line says."""
    process = PeerProcess.from_json(sys.argv[1])
    starter = work.Starter()
    threads = process.job.options.get("starting_threads", 2)
    tf = tensorflow_step.tensorflow(threads)
    cluster = {_KINDS[kind]: process.addresses_of(kind) for kind in ("rank", "server", "coordinator")}
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": cluster, "task": {"type": _KINDS[process.kind], "index": process.number}}
    )
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if process.kind == "coordinator":
        _coordinate(tf, process, starter, resolver)
    settings = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=threads)
    _server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=_KINDS[process.kind],
        task_index=process.number,
        protocol="grpc",
        config=settings,
    )
    starter.say_ready()
    starter.stay()


def _coordinate(tf: Any, process: PeerProcess, starter: work.Starter, resolver: Any) -> NoReturn:
    job = process.job
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model, optimizer = work.network(job)
    replica = tensorflow_step.replica_step(job, model, optimizer, 1)
    compiled = tf.function(lambda batches: strategy.run(replica, args=next(batches)), autograph=False)

    def dataset() -> Any:
        batches = [work.batch(job, number, 0) for number in range(job.batches)]
        x, y = (tf.stack([tf.constant(one[part]) for one in batches]) for part in (0, 1))
        return tf.data.Dataset.from_tensor_slices((x, y)).cache().repeat()

    batches = iter(coordinator.create_per_worker_dataset(dataset))

    def train(steps: int) -> float:
        """Let the workers do so many steps each, as far as they are equally fast; seconds."""
        started = time.perf_counter()
        for _ in range(steps * job.ranks):
            coordinator.schedule(compiled, args=(batches,))
        coordinator.join()
        return time.perf_counter() - started

    train(job.warm_up)
    starter.say_ready()
    starter.wait_for_go()
    seconds = train(job.steps)
    if job.saved:
        work.save(model, Path(job.saved))
    # Workers do not step together: a step of theirs has no times but the mean.
    starter.report({"seconds": [seconds / job.steps] * job.steps})


if __name__ == "__main__":
    main()
