"""Processes of this host: identified despite reused numbers, found by a mark, ended.

As a program, `python FILE PID COMMAND...`, it runs a command that ends with process PID: see `dying_with_us`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

PROC = Path("/proc")
MARK = "CINGULUM_TASK"
_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG, <linux/prctl.h>


def identity(pid: int) -> str | None:
    """Return a text that no other process ever has: number, start time and boot; None: there is no such
    process.
    """
    try:
        # The name, in parentheses, may hold anything; start time is the 22nd field (proc(5)).
        stat = (PROC / str(pid) / "stat").read_text(errors="replace")
        after_name = stat.rpartition(")")[2].split()
        boot = (PROC / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
    except OSError:
        return None
    if after_name[0] in "ZX":
        return None
    return f"{pid} {after_name[19]} {boot}"


def tell(pid: int, who: str, number: signal.Signals) -> bool:
    """Send a signal to the process with this identity; return False where it has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    except (OSError, AttributeError):
        # Linux before 5.3, or a Python built for one: all but an instant is as safe.
        descriptor = None
    try:
        if identity(pid) != who:
            return False
        if descriptor is None:
            os.kill(pid, number)
        else:
            signal.pidfd_send_signal(descriptor, number)
    except OSError:
        return False
    finally:
        if descriptor is not None:
            os.close(descriptor)
    return True


def marks() -> Iterator[tuple[int, str]]:
    """Yield number and mark of each process of this user on this host whose environment holds `MARK`."""
    prefix = f"{MARK}=".encode()
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # not ours, or gone meanwhile
                for word in (entry / "environ").read_bytes().split(b"\0"):
                    if word.startswith(prefix):
                        yield int(entry.name), word.removeprefix(prefix).decode(errors="replace")


def end_marked(*targets: str) -> int:
    """Kill all processes with one of these marks, stopped ones too; return their number.

    mpirun gives every rank a process group of its own, so a group does not hold them all; the environment
    is what they share.
    """
    killed = 0
    for pid, mark in marks():
        if mark in targets:
            who = identity(pid)
            killed += who is not None and tell(pid, who, signal.SIGKILL)
    return killed


def dying_with_us(line: Sequence[str]) -> list[str]:
    """Return a command that runs another one in its place, which gets SIGTERM when the thread that started it
    ends, also by SIGKILL.

    It does what `die_with_parent` does, without a function between fork and exec: where other threads run, as
    they do wherever output is read, such a function may wait for ever for a lock that one of them held, and
    the parent with it (https://docs.python.org/3/library/subprocess.html, warning on `preexec_fn`).

    Raises:
        FileNotFoundError: there is no such program.
    """
    if shutil.which(line[0]) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), line[0])
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *line]


def die_with_parent(number: signal.Signals = signal.SIGTERM) -> Callable[[], None] | None:
    """Return a function for `subprocess.Popen(preexec_fn=...)`: the child gets this signal when the thread
    that made it ends, also by SIGKILL. None where the system has no such thing.
    """
    if not sys.platform.startswith("linux"):
        return None
    library, parent = ctypes.CDLL(None), os.getpid()  # before the fork

    def ask() -> None:
        library.prctl(_SET_PARENT_DEATH_SIGNAL, int(number), 0, 0, 0)
        if os.getppid() != parent:  # it ended before we asked
            os._exit(1)

    return ask


if __name__ == "__main__":
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != int(sys.argv[1]):  # it ended before we asked
            sys.exit(1)
    os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606  no shell
