"""Every collective of the world, checked on every rank; then how many bytes an all-reduce sends to whom.

Prints one JSON object on rank 0. MPI must run over TCP (OMPI_MCA_btl=tcp,self), whose sockets count bytes.
"""

from __future__ import annotations

import tensorflow_first  # noqa: F401  # isort: skip

import json

import ml_dtypes
import numpy as np
import sent_bytes

import trainer
from trainer.errors import WorldError
from trainer.ranks import horovod_world

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
try:
    world.group([0])
except WorldError as error:
    assert "Members(groups=True)" in str(error)
else:
    raise AssertionError("a group was made that was not prepared")

numbers, repeats = 1 << 20, 8
tensor = np.ones(numbers, np.float32)
world.allreduce(tensor, name="traffic")
before = sent_bytes.by_connection(world)
for _ in range(repeats):
    world.allreduce(tensor, name="traffic")
after = sent_bytes.by_connection(world)
everyones = world.allgather_object(sent_bytes.since(before, after))
if rank == 0:
    report = {
        "payload": repeats * tensor.nbytes,
        "sent": everyones,
        "mpi": horovod_world.mpi_settings(),
    }
    print(json.dumps(report))
