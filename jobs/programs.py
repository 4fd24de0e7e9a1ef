"""Run outside programs that must answer: without a shell, within a time limit, with one kind of error."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

from trainer.errors import LauncherError

# mpirun takes its ranks with it when it is asked to end, and leaves them when it is killed.
GRACE_S = 5.0


def ask(
    argv: Sequence[str],
    *,
    seconds: float,
    doing: str = "",
    stdin: str = "",
    environment: Mapping[str, str] | None = None,
    cure: str | None = None,
) -> str:
    """Run a program that must succeed, and return what it prints on its standard output.

    Args:
        argv: program and arguments.
        seconds: after which it is asked to end (SIGTERM), and is killed `GRACE_S` later.
        doing: what this is for, as the error says it: "making the switch".
        stdin: its standard input.
        environment: all of its environment; default: ours.
        cure: what the error advises.

    Raises:
        LauncherError: it cannot be run, failed, or took too long.
    """
    name = f"{doing}: {argv[0]}" if doing else argv[0]
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(
            argv, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True, errors="replace"
        )
    except OSError as error:
        raise LauncherError(f"{name} cannot be run here ({error.strerror}).", cure=cure) from None
    with process:
        try:
            out, err = process.communicate(stdin, timeout=seconds)
        except subprocess.TimeoutExpired:
            _end(process)
            raise LauncherError(f"{name} did not end within {seconds:g} s.", cure=cure) from None
        except BaseException:  # also Ctrl-C
            process.kill()
            raise
    if process.returncode:
        said = (err.strip() or out.strip())[-2000:]
        raise LauncherError(f"{name} ended with {process.returncode}: {said}", cure=cure)
    return out


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
