"""Resources of a site per kind of job: a training and the import before it need different hosts and times."""

from __future__ import annotations

from dataclasses import dataclass

from jobs.sites import Site
from jobs.spec import Resources


@dataclass(frozen=True)
class Asked:
    """The request, in the words of `Resources`; None: not given."""

    nodes: int = 1
    least_nodes: int | None = None
    ranks_per_node: int | None = None
    gpus_per_node: int | None = None
    cpus_per_rank: int | None = None
    memory_mib: int | None = None
    minutes: int | None = None


@dataclass(frozen=True)
class Side:
    """Resources of a job before or after the main one.

    Attributes:
        cpus_per_rank, gpus_per_node: None: as it follows from the main job.
        memory_mib, minutes: None: the site's default.
    """

    cpus_per_rank: int | None
    gpus_per_node: int | None
    memory_mib: int | None
    minutes: int | None


def main(asked: Asked, site: Site, kind: str) -> Resources:
    """Return those of the requested job: the request counts first, then the profile for its kind, then for
    all.

    Raises:
        JobError: impossible numbers.
    """
    here = site.of(kind)
    gpus = _first(asked.gpus_per_node, here.gpus_per_node, 0)
    return Resources(
        nodes=asked.nodes,
        least_nodes=asked.least_nodes,
        ranks_per_node=asked.ranks_per_node or gpus or 1,
        gpus_per_node=gpus,
        cpus_per_rank=_first(asked.cpus_per_rank, here.cpus_per_rank, 1),
        memory_mib=asked.memory_mib or here.memory_mib,
        minutes=asked.minutes,
    )


def side(asked: Asked, site: Site, kind: str) -> Side:
    """Return those of a job before or after it: the profile for its kind counts first, also before the
    request.

    `--time 36h` is for the training; where the profile gives imports four hours, they are to have four.
    """
    own = site.kinds.get(kind)  # type: ignore[call-overload]
    said = own.model_fields_set if own is not None else frozenset()
    return Side(
        cpus_per_rank=own.cpus_per_rank if "cpus_per_rank" in said else None,
        gpus_per_node=own.gpus_per_node if "gpus_per_node" in said else None,
        memory_mib=own.memory_mib if "memory" in said else asked.memory_mib or site.memory_mib,
        minutes=own.minutes if "minutes" in said else asked.minutes,
    )


def _first(*values: int | None) -> int:
    return next(value for value in values if value is not None)
