"""Every collective of the world, checked on every rank; then how many bytes an all-reduce sends to whom.

Prints one JSON object on rank 0. MPI must run over TCP (OMPI_MCA_btl=tcp,self), whose sockets count bytes.
"""

from __future__ import annotations

import json
import socket
from pathlib import Path

import ml_dtypes
import numpy as np

import trainer
from trainer import world as worlds

TCP_INFO_BYTES_SENT = slice(200, 208)  # struct tcp_info, tcpi_bytes_sent


def bytes_by_connection() -> dict[str, int]:
    """Bytes this process has sent over each of its TCP connections.

    Waits for every rank first: what a rank has handed to its kernel is sent once the others have received it.
    """
    world.any(False)
    sent = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            is_socket = str(entry.readlink()).startswith("socket:")
        except FileNotFoundError:
            continue
        if not is_socket:
            continue
        with socket.socket(fileno=worlds.os.dup(int(entry.name))) as connection:
            if connection.family == socket.AF_INET and connection.type == socket.SOCK_STREAM:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                sent[entry.name] = int.from_bytes(info[TCP_INFO_BYTES_SENT], "little")
    return sent


world = trainer.init(threads=1)
rank, size = world.rank, world.size
assert (trainer.rank(), trainer.size(), trainer.local_rank()) == (rank, size, rank)
assert trainer.init() is world
mine = np.array([rank + 1.0, -rank], np.float32)
everyone = np.stack([[r + 1.0, -r] for r in range(size)])
for op in ("mean", "sum", "max", "min"):
    np.testing.assert_allclose(world.allreduce(mine, op).numpy(), getattr(np, op)(everyone, axis=0))
for dtype in (np.float32, np.float16, ml_dtypes.bfloat16, np.uint32, np.bool_, np.int64):
    received = world.broadcast(np.full((2, 3), rank + 1, dtype))
    assert received.dtype == dtype and (received == np.full((2, 3), 1, dtype)).all()
assert world.broadcast(np.float32(rank)) == 0
assert world.broadcast(np.zeros((0, 3))).shape == (0, 3)
np.testing.assert_array_equal(
    world.allgather(np.full((rank, 2), rank)).numpy(),
    np.concatenate([np.full((r, 2), r) for r in range(size)]),
)
assert world.allgather_object({"rank": rank, "text": "ä" * rank}) == [
    {"rank": r, "text": "ä" * r} for r in range(size)
]
assert world.broadcast_object([rank, None]) == [0, None]
assert world.any(rank == size - 1) and not world.any(False)
assert world.hosts == (world.host,) * size

numbers, repeats = 1 << 20, 8
tensor = np.ones(numbers, np.float32)
world.allreduce(tensor, name="traffic")
before = bytes_by_connection()
for _ in range(repeats):
    world.allreduce(tensor, name="traffic")
after = bytes_by_connection()
sent = sorted((after[key] - before.get(key, 0) for key in after), reverse=True)
everyones = world.allgather_object(sent)
if rank == 0:
    report = {
        "payload": repeats * tensor.nbytes,
        "sent": everyones,
        "mpi": worlds.mpi_settings(),
    }
    print(json.dumps(report))
