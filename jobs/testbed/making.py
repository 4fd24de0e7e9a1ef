"""Make a testbed, from claiming its name to idle nodes, and take it down, whatever state it is in."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from jobs.testbed import layout, links, namespaces, programs, slurm_daemons
from jobs.testbed.layout import CONTROLLER, USER, Settings, hosts_file
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
    write(settings, folder)
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


# The /etc of a testbed's hosts: a copy of the machine's, with one more user, and ssh without questions.
#
# Hosts share the machine's file system; this folder is laid over its own, within the hosts only.


_FIRST_FREE = 20000
# Of a copy, in which a file is gone before it is read: useradd makes locks that live for milliseconds.
_TRIES = 5


def write(settings: Settings, folder: Path) -> None:
    """Copy /etc into a testbed's folder; write hosts, passwd, group, shadow and ssh files there."""
    etc = folder / "etc"
    marked = {namespaces.MARK: str(folder)}
    _copy(etc, marked)
    if (etc / "ssh").exists():
        shutil.rmtree(etc / "ssh")  # the machine's own keys stay out of the testbed
    (etc / "ssh").mkdir()
    for name in ("hosts", "passwd", "group", "shadow"):
        (etc / name).unlink(missing_ok=True)
    (etc / "hosts").write_text(hosts_file(settings))
    people = _entries(Path("/etc/passwd"))
    groups = _entries(Path("/etc/group"))
    # The same for user and group: neither may be in use already.
    taken = [int(entry[2]) for entry in people + groups]
    number = max([_FIRST_FREE, *(other + 1 for other in taken if other < 60000)])
    home = folder / "home" / USER
    home.mkdir(parents=True)
    for entry in people:
        # bash reads ~/.bashrc for every command by ssh; what that starts may hang after a power-off.
        if entry[6].endswith("/bash"):
            entry[6] = "/bin/sh"
    people.append([USER, "x", str(number), str(number), "", str(home), "/bin/bash"])
    groups.append([USER, "x", str(number), ""])
    _write_entries(etc / "passwd", people)
    _write_entries(etc / "group", groups)
    # No account has a password: keys are the only way in. "!" would lock even those out.
    (etc / "shadow").touch(0o600)
    _write_entries(etc / "shadow", [[entry[0], "*", "19000", "", "", "", "", "", ""] for entry in people])
    _write_ssh(folder, number)
    os.chown(home, number, number)
    home.chmod(0o700)


def _copy(etc: Path, environment: Mapping[str, str]) -> None:
    for number in range(1, _TRIES + 1):
        try:
            programs.run(["cp", "--archive", "/etc", str(etc)], "copying /etc", environment=environment)
            return
        except LauncherError as error:
            if number == _TRIES or "No such file or directory" not in str(error):
                raise
            shutil.rmtree(etc, ignore_errors=True)


def _write_ssh(folder: Path, number: int) -> None:
    ssh = folder / "etc" / "ssh"
    _make_key(folder, ssh / "host_key")
    (ssh / "known_hosts").write_text(f"* {(ssh / 'host_key.pub').read_text()}")
    (ssh / "authorized").mkdir()
    for user, owner in (("root", 0), (USER, number)):
        keys = ssh / "keys" / user
        keys.mkdir(parents=True)
        _make_key(folder, keys / "id")
        (ssh / "authorized" / user).write_text((keys / "id.pub").read_text())
        for path in (keys, keys / "id"):
            os.chown(path, owner, owner)
        keys.chmod(0o700)
    (ssh / "ssh_config").write_text(
        "# Of the testbed's hosts: each user has a key of its own here, and every host is known.\n"
        "Host *\n"
        f"  IdentityFile {ssh}/keys/%u/id\n"
        f"  UserKnownHostsFile {ssh}/known_hosts\n"
        "  StrictHostKeyChecking yes\n"
        "  BatchMode yes\n"
        "  ConnectTimeout 10\n"
        "  LogLevel ERROR\n"
    )
    (ssh / "sshd_config").write_text(
        f"HostKey {ssh}/host_key\n"
        f"AuthorizedKeysFile {ssh}/authorized/%u\n"
        "PidFile /run/sshd.pid\n"
        "PermitRootLogin prohibit-password\n"
        "PasswordAuthentication no\n"
        "KbdInteractiveAuthentication no\n"
        "UsePAM no\n"
        "UseDNS no\n"
        "MaxStartups 200\n"
        "MaxSessions 200\n"
        "PrintLastLog no\n"
        f"SetEnv SLURM_CONF={folder}/etc/slurm.conf {namespaces.MARK}={folder}\n"
        "Subsystem sftp internal-sftp\n"
    )


def _make_key(folder: Path, path: Path) -> None:
    programs.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "cingulum-testbed", "-f", str(path)],
        "making a key",
        environment={namespaces.MARK: str(folder)},
    )


def _entries(path: Path) -> list[list[str]]:
    entries = [line.split(":") for line in path.read_text().splitlines()]
    # Not the lines of NIS, such as "+::::::".
    return [entry for entry in entries if len(entry) >= 4 and entry[2].isdecimal()]


def _write_entries(path: Path, entries: list[list[str]]) -> None:
    path.write_text("".join(":".join(entry) + "\n" for entry in entries))
