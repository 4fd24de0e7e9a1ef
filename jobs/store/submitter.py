"""Identity of the process that submits a job, so that another can tell later whether it still does."""

from __future__ import annotations

import os
import pwd
import socket
from pathlib import Path

from jobs.local import processes


def myself() -> str:
    """Return the identity of this process: host, boot and process namespace, number, and start (numbers
    return).
    """
    return f"{_machine()} {os.getpid()} {_started(os.getpid())}"


def is_alive(submitter: str) -> bool | None:
    """Return whether the process that `myself` named still runs; None: it is on another host, which cannot be
    asked.
    """
    machine, _, process = submitter.partition(" ")
    if machine != _machine():
        return None
    number, _, started = process.partition(" ")
    return number.isdecimal() and _started(int(number)) == started


def user() -> str:
    """Return the name of the calling user; the number where it has no name, as in some containers."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _machine() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{socket.gethostname()}/{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"


def _started(process: int) -> str:
    """Return clock ticks from the boot to the start of a process; "": there is none, or it is a zombie."""
    who = processes.identity(process)
    return who.split()[1] if who else ""
