"""Make a testbed, from claiming its name to idle nodes, and take it down, whatever state it is in."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from jobs.testbed import accounts, layout, links, namespaces, programs, slurm_daemons
from jobs.testbed.layout import CONTROLLER, Settings
from trainer.errors import JobError, LauncherError

IDLE_SECONDS = 60
# What needs no quoting in slurm.conf, sshd_config and ssh_config.
_PLAIN = re.compile(r"[A-Za-z0-9._/+-]+")


def claim(name: str, folder: Path | None) -> Path:
    """Claim a name, make the folder of its files, and return it; no other testbed can take either then.

    Raises:
        JobError: there is a testbed of this name, the folder exists, or cannot be one.
    """
    place = layout.place(name)
    if folder is not None:
        folder = folder.resolve()
        if not _PLAIN.fullmatch(str(folder)):
            raise JobError(
                f"{folder}: files of Slurm and ssh cannot name this path.", cure=f"Use {_PLAIN.pattern}"
            )
        if folder.exists():
            raise JobError(f"{folder} exists already.", cure="Name a folder that does not.")
    try:
        _take(place, folder)
    except FileExistsError as error:
        raise JobError(
            f"There is a testbed {name!r} already.", cure=f"cingulum testbed down --name {name}"
        ) from error
    if folder is not None:
        try:
            folder.mkdir()
        except OSError as error:
            place.unlink()  # not `down`: the folder may be another testbed's
            raise JobError(f"{folder} cannot be made: {error.strerror}.") from error
    return place.resolve()


def _take(place: Path, folder: Path | None) -> None:
    for _ in range(100):
        # The end of another testbed may take the empty folders above away again at any moment.
        with contextlib.suppress(FileNotFoundError):
            for above in (layout.BASE.parent, layout.BASE):
                above.mkdir(parents=True, exist_ok=True)
                above.chmod(0o755)
            if folder is None:
                place.mkdir()
            else:
                place.symlink_to(folder)
            return
    raise LauncherError(f"{place} cannot be made: the folder above it vanishes again and again.")


def make(settings: Settings, folder: Path, *, tied: bool) -> None:
    """Make a testbed in its folder; return when all nodes are idle.

    Args:
        settings: what is asked for.
        folder: as `claim` returned it.
        tied: whether the testbed ends with the process that calls this.

    Raises:
        LauncherError: this machine cannot do it, or something did not come up in time.
    """
    mask = os.umask(0o022)  # users without rights read Slurm's and ssh's configuration
    try:
        _write(settings, folder)
    finally:
        os.umask(mask)
    if settings.cpus_per_host is not None:
        namespaces.set_quota(folder, settings.name, settings.host_names, settings.cpus_per_host)
    namespaces.start_switch(folder, tied=tied)
    links.make_switch(folder)
    start_hosts(settings, folder, settings.all_names)
    if settings.slurm:
        slurm_daemons.start_munged(folder)
        slurm_daemons.start_controller_host(settings, folder)
        for host in settings.host_names:
            slurm_daemons.start_slurmd(folder, host)
        slurm_daemons.wait_for_nodes(folder, settings.host_names, IDLE_SECONDS)
    layout.save(settings, folder)  # last: without it, a testbed is only half made


def start_hosts(settings: Settings, folder: Path, hosts: Sequence[str]) -> None:
    """Start hosts with their links and ssh servers; without slurmd."""
    for host in hosts:
        namespaces.start_host(folder, host)
    links.plug_in(folder, hosts)
    sshd = [programs.find("sshd") or "sshd", "-D", "-e", "-f", f"{folder}/etc/ssh/sshd_config"]
    for host in hosts:
        slurm_daemons.daemon(folder, host, sshd, f"sshd.{host}.log")
        if host != CONTROLLER:
            if settings.bandwidth is not None:
                links.shape(folder, host, settings.bandwidth)
            if settings.delay is not None:
                links.set_delay(folder, host, settings.delay)


def hidden(path: Path) -> bool:
    """Return whether hosts would not see this path, unless they were made to."""
    return any(top in path.parents for top in layout.PRIVATE)


def _write(settings: Settings, folder: Path) -> None:
    folder.chmod(0o755)
    for name in ("log", "pids"):
        (folder / name).mkdir()
    kept = {*settings.kept, *([str(folder)] if hidden(folder) else [])}
    (folder / "kept").write_bytes(b"".join(os.fsencode(path) + b"\0" for path in sorted(kept)))
    accounts.write(settings, folder)
    if settings.slurm:
        slurm_daemons.write(settings, folder)


def take_down(name: str) -> bool:
    """End all processes of a testbed and remove its cgroups and files; also of one that was half made.

    Its network, mounts and host names live in namespaces, which go with their last process.

    Returns:
        Whether there was anything to take down.

    Raises:
        JobError: this cannot be the name of a testbed.
        LauncherError: something would not end, or this is run in a testbed's host.
    """
    place = layout.place(name)
    namespaces.check_outside()
    if not os.path.lexists(place):
        return False
    folder = place.resolve()
    namespaces.end_all(folder)
    namespaces.remove_quotas(name)
    # Files first, the name last: after a crash in between, the name still leads here.
    while folder.exists():
        with contextlib.suppress(FileNotFoundError):  # another `down` is at it, too
            shutil.rmtree(folder)
    place.unlink(missing_ok=True)
    for empty in (layout.BASE, layout.BASE.parent):
        with contextlib.suppress(OSError):  # others are in use
            empty.rmdir()
    return True
