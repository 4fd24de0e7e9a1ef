"""Measure the memory that this process may still use, within its limits and those of its control groups."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

# Where control groups are found: of version 2, and the memory controller of version 1.
_ROOTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory"))
_NAMES = {  # of the files with limit and use, and in memory.stat of what is given back when memory is short
    "memory.max": ("memory.current", "inactive_file"),
    "memory.limit_in_bytes": ("memory.usage_in_bytes", "total_inactive_file"),
}


def available_bytes(
    roots: tuple[Path, ...] = _ROOTS, own: Path = Path("/proc/self/cgroup"), free: int | None = None
) -> int:
    """Return the least that the host, control groups above this process and its own limit leave, in bytes.

    Args:
        roots: see `shared_bytes`.
        own: see there.
        free: see there.
    """
    left = [*shared_bytes(roots, own, free).values()]
    alone = own_bytes()
    if alone is not None:
        left.append(alone)
    return min(left)


def shared_bytes(
    roots: tuple[Path, ...] = _ROOTS, own: Path = Path("/proc/self/cgroup"), free: int | None = None
) -> dict[str, int]:
    """Return what the host and each control group above this process leave, in bytes.

    A batch system limits a job, not a process, so what other ranks of the host take counts here too.

    Args:
        roots: folders of control groups.
        own: says in which of them this process is.
        free: what the host leaves; default: as psutil finds it.

    Returns:
        By a name that is the same in all processes of the host that share this memory.
    """
    left = {"host": psutil.virtual_memory().available if free is None else free}
    for group in _groups(roots, own):
        for limit, (used, reclaimable) in _NAMES.items():
            if (group / limit).is_file():
                most = (group / limit).read_text().strip()
                if most != "max":
                    taken = int((group / used).read_text()) - _stat(group, reclaimable)
                    # Containers may see the same path for different groups, and different paths for one.
                    left[f"{limit} of {group.stat().st_ino}"] = max(0, int(most) - taken)
    return left


def own_bytes() -> int | None:
    """Return what this process's limit of address space leaves, in bytes; None without one."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    return max(0, limit - int(psutil.Process().memory_info().vms))


def shares(left: Sequence[tuple[int | None, Mapping[str, int]]], hosts: Sequence[str]) -> list[float]:
    """Return the bytes that each process can have, if those that share a memory take equal parts of it; pure.

    Args:
        left: of each process, its `own_bytes` and `shared_bytes`.
        hosts: of each process.
    """
    available = []
    for (alone, shared), host in zip(left, hosts, strict=True):
        parts = [] if alone is None else [float(alone)]
        for name, bytes_ in shared.items():
            others = zip(left, hosts, strict=True)
            parts.append(bytes_ / sum(name in its and where == host for (_, its), where in others))
        available.append(min(parts))
    return available


def _groups(roots: tuple[Path, ...], own: Path) -> Iterator[Path]:
    """Return the folders of our control groups and of their parents; a container may lack some."""
    names = [line.split(":", 2)[2] for line in own.read_text().splitlines()] if own.is_file() else []
    for root in roots:
        inside = {root}
        for name in names:
            folder = root / name.strip("/")
            inside |= {folder, *(parent for parent in folder.parents if root in parent.parents)}
        yield from sorted(inside)


def _stat(group: Path, key: str) -> int:
    lines = (group / "memory.stat").read_text().splitlines() if (group / "memory.stat").is_file() else []
    return next((int(line.split()[1]) for line in lines if line.split()[0] == key), 0)
