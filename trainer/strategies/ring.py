"""What a run's reduction really is: MPI's word for it, and the files that Horovod writes about it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from trainer import atomic
from trainer.config import RingConfig
from trainer.errors import WorldError
from trainer.ranks import horovod_world, launch
from trainer.ranks.world import World


def check(ring: RingConfig, world: World) -> None:
    """Check that MPI took the algorithm that was asked for; no collective.

    Raises:
        WorldError: it did not.
    """
    if world.size > 1 and "algorithm" in ring.model_fields_set:
        wrong = differing(ring, horovod_world.mpi_settings())
        if wrong:
            raise WorldError(
                f"train.strategy.algorithm: {ring.algorithm} was asked for, but MPI says: "
                f"{', '.join(wrong)}.",
                cure="It takes Open MPI, started by `cingulum train` or trainer.init(environment=...) "
                "and not before; or leave train.strategy.algorithm out.",
            )


def differing(ring: RingConfig, settings: Mapping[str, int]) -> list[str]:
    """Return wrong settings of MPI for an algorithm, such as "coll_tuned_bcast_algorithm is 1, not 6".

    Args:
        ring: names the algorithm.
        settings: of `horovod_world.mpi_settings`.
    """
    expected = {
        key.removeprefix("OMPI_MCA_"): int(value) for key, value in launch.ALGORITHMS[ring.algorithm].items()
    }
    # Without it, none of the others has any effect.
    expected["coll_tuned_use_dynamic_rules"] = 1
    return [
        f"{name} is {settings.get(name, 'unknown')}, not {value}"
        for name, value in expected.items()
        if settings.get(name) != value
    ]


@contextlib.contextmanager
def recorded(ring: RingConfig, world: World, folder: Path, step: int) -> Iterator[None]:
    """Let Horovod write its timeline, and keep what its autotuning found, where these were asked for.

    Args:
        ring: the run's options.
        world: all ranks. In a world of one rank there is no Horovod, and nothing is written.
        folder: where the files go, `horovod-timeline-STEP.json` and `horovod-autotune-STEP.csv`.
        step: at which the run starts or goes on; it keeps the files of several starts apart.
    """
    if world.size == 1:
        yield
        return
    if world.is_main and (ring.timeline or ring.autotune):
        atomic.make_folder(folder)
    if ring.timeline:
        path = folder / f"horovod-timeline-{step:06d}.json"
        if world.is_main and path.exists():  # Horovod of an earlier start may still write it
            atomic.remove(path)
        world.start_timeline(path)
    try:
        yield
    finally:
        log = Path(os.environ.get("HOROVOD_AUTOTUNE_LOG", ""))
        if ring.autotune and world.is_main and log.is_file():
            atomic.write_bytes(folder / f"horovod-autotune-{step:06d}.csv", log.read_bytes())
