"""Start the processes of a start, hold and forward signals, and tell how they ended."""

import os
import signal
import subprocess
from typing import Dict, Optional, Sequence

Process = subprocess.Popen  # of bytes
_HELD = (signal.SIGUSR2, signal.SIGTERM, signal.SIGCHLD)
# A program on a file server that does not answer would be waited for without end.
_SHORT_S = 60.0


def hold_signals() -> None:
    """Hold USR2, TERM and the end of a child for `next_signal`: none is lost at any moment."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
    for number in _HELD:
        signal.signal(number, signal.SIG_DFL)  # bash hands on what it ignores, and ranks would inherit that


def next_signal(limit_s: Optional[float] = None, *, among: Sequence[int] = _HELD) -> str:
    """Wait for one of these signals: `USR2`, `TERM`, `CHLD`; return "" where none came in
    `limit_s` seconds.
    """
    if limit_s is None:
        return signal.Signals(signal.sigwait(among)).name[3:]
    found = signal.sigtimedwait(among, limit_s)
    return "" if found is None else signal.Signals(found.si_signo).name[3:]


def start(line: Sequence[str], environment: Dict[str, str]) -> "subprocess.Popen[bytes]":
    """Start ranks, which get all signals, and write where we do.

    Raises:
        OSError: there is no such program, or it may not be run.
    """
    return subprocess.Popen(line, env=environment, stdin=subprocess.DEVNULL, preexec_fn=free_signals)


def start_aside(line: Sequence[str], environment: Dict[str, str]) -> "Optional[subprocess.Popen[bytes]]":
    """Start a detached process without output; return None where it cannot be started."""
    nowhere = subprocess.DEVNULL
    try:
        return subprocess.Popen(
            line, env=environment, stdin=nowhere, stdout=nowhere, stderr=nowhere, preexec_fn=free_signals
        )
    except OSError:
        return None


def ends_well(line: Sequence[str]) -> bool:
    """Return whether a short command without output ends with 0, and in time."""
    nowhere = subprocess.DEVNULL
    try:
        done = subprocess.run(
            line,
            stdin=nowhere,
            stdout=nowhere,
            stderr=nowhere,
            timeout=_SHORT_S,
            check=False,
            preexec_fn=free_signals,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def tell_to_save(process: "Optional[subprocess.Popen[bytes]]") -> None:
    """Forward USR2, if it still runs."""
    if process is not None and process.poll() is None:
        os.kill(process.pid, signal.SIGUSR2)


def exit_code(status: int) -> int:
    """Return the exit code as a shell reports it: 128 + n for a process that signal n has ended."""
    return 128 - status if status < 0 else status


def free_signals() -> None:
    """Unblock all signals in a new process, before its program."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
