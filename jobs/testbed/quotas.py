"""CPU quotas of hosts, by the kernel's cgroups (version 1 or 2)."""

from __future__ import annotations

from pathlib import Path

from jobs.testbed import programs
from trainer.errors import LauncherError

_ROOT = Path("/sys/fs/cgroup")
_PERIOD = 100_000  # microseconds; the kernel's own default


def limit(folder: Path, name: str, hosts: tuple[str, ...], cpus: float) -> None:
    """Make a cgroup for each host with the CPU time of so many cores; a host joins its own as it starts.

    Raises:
        LauncherError: this machine has no such cgroups, or does not let us make any.
    """
    (folder / "quotas").mkdir()
    quota = max(1000, round(cpus * _PERIOD))  # the kernel takes no less than 1 ms
    top = _top(name)
    try:
        top.mkdir(exist_ok=True)
        if _is_version_2(top):
            # A group's children are limited only where it hands the controller on.
            for above in (top.parent, top):
                (above / "cgroup.subtree_control").write_text("+cpu")
        for host in hosts:
            group = top / host
            group.mkdir(exist_ok=True)
            if _is_version_2(top):
                (group / "cpu.max").write_text(f"{quota} {_PERIOD}")
            else:
                (group / "cpu.cfs_period_us").write_text(str(_PERIOD))
                (group / "cpu.cfs_quota_us").write_text(str(quota))
            (folder / "quotas" / host).write_text(str(group / "cgroup.procs"))
    except OSError as error:
        raise LauncherError(
            f"CPU quotas cannot be set here: {error.filename or top}: {error.strerror or error}.",
            cure="Leave --cpus-per-host out, or use a machine whose cgroups you may write.",
        ) from error


def of_host(folder: Path, host: str) -> Path | None:
    """Return the file that a process of this host writes itself into; None: the host has no quota."""
    try:
        return Path((folder / "quotas" / host).read_text())
    except FileNotFoundError:
        return None


def remove(name: str) -> None:
    """Remove the cgroups of a testbed whose processes are gone."""
    top = _top(name)

    def removed() -> bool:
        try:
            for group in [path for path in top.rglob("*") if path.is_dir()][::-1]:
                group.rmdir()
            top.rmdir()
        except FileNotFoundError:
            pass
        except OSError:  # a process that was killed is still on its way out
            return False
        return True

    programs.wait_for(removed, f"the end of the cgroups below {top}", 20)


def _top(name: str) -> Path:
    version_1 = _ROOT / "cpu"
    return (version_1 if version_1.is_dir() else _ROOT) / f"cingulum-testbed-{name}"


def _is_version_2(top: Path) -> bool:
    return (top.parent / "cgroup.controllers").exists()
