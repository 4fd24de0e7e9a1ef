"""One rank of what our all-reduce is compared with; `ring_on_a_shaped_link.py` starts one on each host.

- `gloo`: PyTorch's all-reduce over Gloo, which DistributedDataParallel takes on processors.
- `multiworker`: the ring of TensorFlow's MultiWorkerMirroredStrategy, over gRPC.
- `streams`: no all-reduce, but the limit: one plain TCP stream from each host to the next, all at the same
  time, of as many bytes as a ring sends for the tensor.

Runs in the peers' environment, too: nothing but Python, and the framework itself. Prints its seconds by size
in MiB, as JSON, on a line that begins with `done`.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

PORT = 20100
PIECE = bytes(2**20)
# What takes a tensor's size in MiB and returns: what lets all ranks start together, and what is timed.
Prepared = tuple[Callable[[], Any], Callable[[], Any]]


def gloo(rank: int, addresses: list[str], interface: str) -> Callable[[float], Prepared]:
    """PyTorch's all-reduce of a float32 tensor."""
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    import torch

    torch.set_num_threads(1)
    distributed = torch.distributed
    distributed.init_process_group(
        "gloo", init_method=f"tcp://{addresses[0]}:{PORT}", rank=rank, world_size=len(addresses)
    )

    def prepare(mib: float) -> Prepared:
        tensor = torch.ones(int(mib * 2**18))
        return distributed.barrier, lambda: distributed.all_reduce(tensor)

    return prepare


def multiworker(rank: int, addresses: list[str], interface: str) -> Callable[[float], Prepared]:
    """TensorFlow's all-reduce of a float32 tensor, in a compiled function."""
    workers = [f"{address}:{PORT}" for address in addresses]
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
    )
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    settings = tf.distribute.experimental
    options = settings.CommunicationOptions(implementation=settings.CommunicationImplementation.RING)
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)

    def summed(tensor: Any) -> Callable[[], Any]:
        def replica() -> Any:
            context = tf.distribute.get_replica_context()
            # A copy, because only what is made here has a device, without which there is no all-reduce.
            total = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(tensor), options=options)
            return tf.reduce_max(total)  # not the sum itself: it would be copied once more for each call

        step = tf.function(lambda: strategy.run(replica), autograph=False)
        return lambda: step().numpy()

    def prepare(mib: float) -> Prepared:
        return summed(tf.ones([1])), summed(tf.Variable(tf.ones([int(mib * 2**18)])))

    return prepare


def streams(rank: int, addresses: list[str], interface: str) -> Callable[[float], Prepared]:
    """A stream to the next host, and one from the host before."""
    ranks = len(addresses)
    with socket.create_server((addresses[rank], PORT), backlog=1) as server:
        onward = _connected(addresses[(rank + 1) % ranks])
        inward, _ = server.accept()

    def receive(count: int) -> None:
        while count:
            got = len(inward.recv(min(count, 2**18)))
            if not got:
                raise SystemExit(f"the host before {addresses[rank]} has ended")
            count -= got

    def wait() -> None:
        for _ in range(2):  # the second round starts when all have been through the first
            if rank == 0:
                onward.sendall(b"x")
                receive(1)
            else:
                receive(1)
                onward.sendall(b"x")

    def prepare(mib: float) -> Prepared:
        count = int(2 * (ranks - 1) / ranks * mib * 2**20)

        def both() -> None:
            receiving = threading.Thread(target=receive, args=(count,))
            receiving.start()
            for start in range(0, count, len(PIECE)):
                onward.sendall(PIECE[: count - start])
            receiving.join()

        return wait, both

    return prepare


def _connected(address: str) -> socket.socket:
    deadline = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection((address, PORT), timeout=60)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)  # it has not started to listen yet


KINDS = {"gloo": gloo, "multiworker": multiworker, "streams": streams}


def main() -> None:
    """Time what the command line asks for, as `ring_on_a_shaped_link` times ours."""
    wanted = json.loads(sys.argv[1])
    prepare = KINDS[wanted["kind"]](wanted["rank"], wanted["addresses"], wanted["interface"])
    seconds: dict[str, list[float]] = {}
    for mib in wanted["mib"]:
        together, timed = prepare(mib)
        together()
        timed()
        for _ in range(wanted["repeats"]):
            together()
            started = time.perf_counter()
            timed()
            seconds.setdefault(str(mib), []).append(time.perf_counter() - started)
    together()  # nobody leaves before all are done
    print(f"done {json.dumps(seconds)}", flush=True)


if __name__ == "__main__":
    main()
