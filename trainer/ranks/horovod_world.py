"""A world of several ranks: the only importer of Horovod and, with mpi_world.py, of mpi4py.

`starting.init` imports this file after TensorFlow.
"""

from __future__ import annotations

import copy
import ctypes
import json
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainer.batch_environment import STARTER_OF_MPI
from trainer.errors import WorldError
from trainer.ranks import launch, links
from trainer.ranks.world import LAST_WORDS_S, Op, World, as_tensor


class HorovodWorld(World):
    """A world of several ranks, over Horovod and MPI: all processes of MPI, those named, or a group of them.

    Args:
        processes: of MPI that are ranks; default: all.
        groups: whether `group` is used.

    Raises:
        WorldError: MPI does not see the ranks that were launched.
    """

    def __init__(self, processes: Sequence[int] | None = None, *, groups: bool = False) -> None:
        super().__init__()
        import horovod.tensorflow as hvd

        hvd.init(
            comm=None if processes is None else list(processes),
            process_sets="dynamic" if groups else None,
        )
        self._hvd = hvd
        self._set = hvd.global_process_set
        self._ops = {"mean": hvd.Average, "sum": hvd.Sum, "max": hvd.Max, "min": hvd.Min}
        self.rank, self.size = hvd.rank(), hvd.size()
        self.local_rank, self.local_size = hvd.local_rank(), hvd.local_size()
        # Before the first collective, with which TensorFlow starts.
        launch.pin_gpu(self.local_rank)
        # Of Horovod's whole world, by our number; a group has a part of them.
        self._ranks = tuple(range(self.size))
        self._groups: dict[tuple[int, ...], World | None] | None = {} if groups else None
        expected = launch.expected_size() if processes is None else len(processes)
        if self.size != expected:
            raise WorldError(
                f"{expected} ranks were launched, but MPI sees {self.size}.",
                cure="Launch with the mpirun of the MPI that Horovod was built with, "
                f"or with `{STARTER_OF_MPI}`. `cingulum doctor` shows both.",
            )
        self.hosts = tuple(self.allgather_object(self.host))

    def name_of(self, rank: int) -> str:
        return f"rank {self._ranks[rank]} @ {self.hosts[rank]}"

    def group(self, ranks: Sequence[int]) -> World | None:
        super().group(ranks)
        key = tuple(ranks)
        if key == self._ranks:
            return self
        if self._groups is None:
            raise WorldError(
                "Groups of ranks were not prepared when the world was started.",
                cure="Return Members(groups=True) from the strategy's `members`, and make groups of the "
                "whole world alone.",
            )
        if key not in self._groups:
            process_set = self._hvd.add_process_set(list(key))
            self._groups[key] = self._part(process_set, key) if self.rank in key else None
        return self._groups[key]

    def _part(self, process_set: Any, ranks: tuple[int, ...]) -> HorovodWorld:
        part = copy.copy(self)
        part._set, part._ranks, part._groups = process_set, ranks, None
        part.rank, part.size = ranks.index(self.rank), len(ranks)
        part.hosts = tuple(self.hosts[rank] for rank in ranks)
        part.local_rank = part.hosts[: part.rank].count(self.host)
        part.local_size = part.hosts.count(self.host)
        return part

    def allreduce(
        self, tensor: Any, op: Op = "mean", *, name: str | None = None, unscoped: bool = False
    ) -> Any:
        return self._hvd.allreduce(
            as_tensor(tensor),
            op=self._ops[op],
            name=name,
            process_set=self._set,
            ignore_name_scope=unscoped,
        )

    def grouped_allreduce(self, tensors: Sequence[Any], op: Op, *, name: str) -> list[Any]:
        return list(
            self._hvd.grouped_allreduce(list(tensors), op=self._ops[op], name=name, process_set=self._set)
        )

    def alltoall(self, tensor: Any, *, name: str, splits: Sequence[int] | None = None) -> Any:
        if splits is None:
            return self._hvd.alltoall(tensor, name=name, process_set=self._set)
        lengths = np.array(splits, np.int32)
        return self._hvd.alltoall(tensor, splits=lengths, name=name, process_set=self._set)[0]

    def broadcast_tensor(self, tensor: Any, *, name: str) -> Any:
        # Horovod names the root by its number in the whole world.
        return self._hvd.broadcast(tensor, root_rank=self._ranks[0], name=name, process_set=self._set)

    def allgather(self, array: Any, *, name: str | None = None) -> Any:
        return self._hvd.allgather(as_tensor(array), name=name, process_set=self._set)

    def broadcast(self, array: np.ndarray) -> np.ndarray:
        array = np.asarray(array)
        # As bytes: Horovod knows fewer types than NumPy (no bfloat16, no uint32), and bytes are exact.
        flat = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
        if flat.size == 0:
            return array
        received = self.broadcast_tensor(as_tensor(flat), name="broadcast").numpy()
        return np.frombuffer(received.tobytes(), array.dtype).reshape(array.shape).copy()

    def allgather_object(self, value: Any) -> list[Any]:
        text = np.frombuffer(json.dumps(value).encode(), np.uint8)
        lengths = self.allgather(np.array([text.size], np.int64), name="object_lengths").numpy()
        joined = self.allgather(text, name="objects").numpy().tobytes()
        ends = np.cumsum(lengths)
        return [json.loads(joined[end - n : end]) for end, n in zip(ends, lengths, strict=True)]

    def any(self, flag: bool) -> bool:
        return bool(self.allreduce(np.array([flag], np.int32), "max", name="any").numpy()[0])

    def barrier(self) -> None:
        self.any(False)

    def _end_others(self, exit_code: int) -> None:
        time.sleep(LAST_WORDS_S)
        links.abort(_mpi(), exit_code)

    def start_timeline(self, path: Path) -> None:
        try:
            self._hvd.start_timeline(str(path), mark_cycles=True)  # rank 0 writes, for all
        except ValueError as error:
            raise WorldError(
                f"There is no timeline: {error}", cure="train.strategy.timeline sets it."
            ) from None

    def shutdown(self) -> None:
        # Horovod ends MPI on all ranks as soon as the first one leaves.
        self.barrier()
        if self._set is self._hvd.global_process_set:
            self._hvd.shutdown()


def mpi_settings() -> dict[str, int]:
    """Return Open MPI's own values, after the start, of what `launch` sets (`launch.READ_BACK`).

    Returns:
        Such as `coll_tuned_allreduce_algorithm` (4: ring), `coll_tuned_use_dynamic_rules` and
        `mpi_yield_when_idle` (1: on), `btl_tcp_flags` (9: send, in place); a key is missing where this MPI
        has no such setting.
    """
    return _control_variables(_mpi().__file__, launch.READ_BACK)


def _control_variables(library_path: str, names: Iterable[str]) -> dict[str, int]:
    """Return the values of MPI's control variables, as they are now (MPI_T: MPI 3.1, chapter 14).

    Args:
        library_path: of a library that is linked with MPI and loaded.
        names: of the variables; numbers, enumerations and booleans.

    Returns:
        Name -> value, without those that this MPI does not have.
    """
    library = ctypes.CDLL(library_path)
    library.MPI_T_init_thread(0, ctypes.byref(ctypes.c_int()))
    values = {}
    for name in names:
        index, handle, count = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
        if library.MPI_T_cvar_get_index(name.encode(), ctypes.byref(index)):
            continue
        library.MPI_T_cvar_handle_alloc(index, None, ctypes.byref(handle), ctypes.byref(count))
        value = (ctypes.c_uint8 * 8)()
        library.MPI_T_cvar_read(handle, value)
        # Booleans and flags fill one byte, numbers four, or eight of which four do; only the name tells here.
        whole = name.startswith(("coll_tuned_", "btl_tcp_eager")) and not name.endswith("_rules")
        values[name] = int.from_bytes(bytes(value[: 4 if whole else 1]), sys.byteorder)
    return values


def horovods_own_optimizer(optimizer: Any) -> Any:
    """Wrap a Keras optimizer as Horovod does, which `cingulum doctor` shows to reduce nothing."""
    import horovod.tensorflow as hvd

    return hvd.DistributedOptimizer(optimizer)


def _mpi() -> Any:
    import mpi4py

    # Horovod starts and ends MPI.
    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = False
    from mpi4py import MPI

    return MPI
