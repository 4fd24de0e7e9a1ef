"""The /etc of a testbed's hosts: a copy of the machine's, with one more user, and ssh without questions.

Hosts share the machine's file system; this folder is laid over its own, within the hosts only.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from jobs.testbed import namespaces, programs
from jobs.testbed.layout import USER, Settings, hosts_file
from trainer.errors import LauncherError

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
