"""Processes of a testbed: one holds the switch, one is process 1 of each host; and CPU quotas of hosts."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path

from jobs.testbed import programs
from trainer.errors import LauncherError

# Every process of a testbed carries its folder in this variable; so they are found again after any crash.
MARK = "CINGULUM_TESTBED"
_HERE = Path(__file__).parent
SWITCH = "switch"


def check_outside() -> None:
    """Refuse to run where a testbed's processes cannot be seen.

    Raises:
        LauncherError: we run in a host of a testbed, or not as root.
    """
    programs.check_root()
    if MARK in os.environ:
        raise LauncherError(
            "This is a host of a testbed; from within, testbeds can be neither made nor changed.",
            cure="Leave the host first.",
        )


def start_switch(folder: Path, *, tied: bool) -> None:
    """Start process 1 of a testbed, which holds the switch's network.

    Args:
        folder: of the testbed.
        tied: whether the testbed dies when the process that calls this ends.
    """
    os.mkfifo(folder / "boot", 0o600)
    argv = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child=KILL"]
    if tied:
        argv = ["setpriv", "--pdeathsig", "KILL", *argv]
    log = os.open(folder / "log" / "switch.log", os.O_WRONLY | os.O_CREAT, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        # No Popen: this process outlives the object, and us.
        os.posix_spawnp(
            argv[0],
            [*argv, "bash", str(_HERE / "testbed-init.sh"), str(folder)],
            {"PATH": programs.PATH, MARK: str(folder)},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, nothing, 0),
                (os.POSIX_SPAWN_DUP2, log, 1),
                (os.POSIX_SPAWN_DUP2, log, 2),
                # Who waits for the end of a pipe that we were given would wait for the testbed's.
                *((os.POSIX_SPAWN_CLOSE, number) for number in _open_numbers() if number > 2),
            ],
            setsid=True,
        )
    finally:
        os.close(log)
        os.close(nothing)
    _wait(folder, SWITCH, folder / "log" / "switch.log")


def start_host(folder: Path, host: str) -> int:
    """Start a host's process 1 and return its number.

    Raises:
        LauncherError: the testbed is not up, or the process did not come up.
    """
    need(folder, SWITCH)  # no other process reads the fifo
    (folder / "pids" / host).unlink(missing_ok=True)
    with (folder / "boot").open("w") as fifo:
        fifo.write(f"{host}\n")
    return _wait(folder, host, folder / "log" / f"init.{host}.log")


def _open_numbers() -> list[int]:
    return [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]


def _wait(folder: Path, host: str, log: Path) -> int:
    try:
        programs.wait_for(lambda: pid(folder, host) is not None, f"process 1 of {host}", 20)
    except LauncherError as error:
        said = log.read_text(errors="replace").strip()[-1000:] if log.exists() else ""
        raise LauncherError(f"{error.message} It said: {said or 'nothing'}") from error
    number = pid(folder, host)
    if number is None:
        raise LauncherError(f"Process 1 of {host} has died again.")
    return number


def pid(folder: Path, host: str) -> int | None:
    """Return the number of a host's process 1 (or of the switch's); None: it does not run."""
    try:
        number = int((folder / "pids" / host).read_text())
    except (OSError, ValueError):
        return None
    # A number may have been given to another process since.
    return number if _mark(number) == str(folder) and _is_first(number) else None


def need(folder: Path, host: str) -> int:
    """Return the number of a host's process 1; raise LauncherError where it does not run.

    Raises:
        LauncherError: the host is powered off, or the whole testbed has ended.
    """
    number = pid(folder, host)
    if number is None and (host == SWITCH or pid(folder, SWITCH) is None):
        raise LauncherError(
            f"The testbed in {folder} has lost its first process, and all others with it.",
            cure="Take it down (cingulum testbed down), and make a new one.",
        )
    if number is None:
        raise LauncherError(f"{host} is powered off.", cure=f"cingulum testbed boot {host}")
    return number


def enter(number: int) -> list[str]:
    """Return the start of a command line that runs its rest within the namespaces of a host's process 1."""
    return ["nsenter", "--target", str(number), "--mount", "--uts", "--ipc", "--net", "--pid"]


def enter_switch(folder: Path) -> list[str]:
    """Return the start of a command line that runs its rest within the switch's network, and dies with the
    testbed.
    """
    return ["nsenter", "--target", str(need(folder, SWITCH)), "--mount", "--net", "--pid"]


def end(number: int) -> None:
    """Kill a process 1, and with it all processes of its host, and wait until it is gone."""
    _kill(number)
    programs.wait_for(lambda: not _runs(number), f"the end of process {number}", 20)


def end_all(folder: Path) -> None:
    """Kill every process of a testbed, also of a half-made one, and wait until they are gone."""
    # Those of which we are a child would end us in the middle.
    spared = {os.getpid(), os.getppid()}

    def rest() -> list[int]:
        found = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
        return [number for number in found if number not in spared and _mark(number) == str(folder)]

    def all_gone() -> bool:
        left = rest()
        for number in left:
            _kill(number)
            _reap(number)
        return not left

    programs.wait_for(all_gone, f"the end of the processes of {folder}", 30)


def inner(number: int, path: str) -> Path:
    """Return a path as a host's process 1 sees it, for reading from outside."""
    return Path(f"/proc/{number}/root{path}")


def running(number: int, program: str) -> list[int]:
    """Return numbers, within a host, of the processes there that run a program of this name."""
    pids = []
    for stat in inner(number, "/proc").glob("[0-9]*/stat"):
        try:
            before, _, after = stat.read_text().rpartition(")")
        except OSError:
            continue
        if before.partition("(")[2] == program and after.split()[0] != "Z":
            pids.append(int(stat.parent.name))
    return pids


def environment(variables: Mapping[str, str]) -> list[str]:
    """Return arguments for `env`."""
    return [f"{key}={value}" for key, value in variables.items()]


def _mark(number: int) -> str | None:
    try:
        variables = Path(f"/proc/{number}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    wanted = f"{MARK}=".encode()
    # Any user's process may carry anything under this name.
    return next((os.fsdecode(v[len(wanted) :]) for v in variables if v.startswith(wanted)), None)


def _is_first(number: int) -> bool:
    try:
        status = Path(f"/proc/{number}/status").read_text()
    except OSError:
        return False
    return any(line.startswith("NSpid:") and line.split()[-1] == "1" for line in status.splitlines())


def _runs(number: int) -> bool:
    _reap(number)
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _kill(number: int) -> None:
    try:
        os.kill(number, signal.SIGKILL)
    except ProcessLookupError:
        return


def _reap(number: int) -> None:
    try:
        os.waitpid(number, os.WNOHANG)
    except ChildProcessError:
        return


_CGROUPS = Path("/sys/fs/cgroup")
_QUOTA_PERIOD = 100_000  # microseconds; the kernel's own default


def set_quota(folder: Path, name: str, hosts: tuple[str, ...], cpus: float) -> None:
    """Make a cgroup for each host with the CPU time of `cpus` cores; a host joins its own as it starts.

    Raises:
        LauncherError: this machine has no such cgroups, or does not let us make any.
    """
    (folder / "quotas").mkdir()
    quota = max(1000, round(cpus * _QUOTA_PERIOD))  # the kernel takes no less than 1 ms
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
                (group / "cpu.max").write_text(f"{quota} {_QUOTA_PERIOD}")
            else:
                (group / "cpu.cfs_period_us").write_text(str(_QUOTA_PERIOD))
                (group / "cpu.cfs_quota_us").write_text(str(quota))
            (folder / "quotas" / host).write_text(str(group / "cgroup.procs"))
    except OSError as error:
        raise LauncherError(
            f"CPU quotas cannot be set here: {error.filename or top}: {error.strerror or error}.",
            cure="Leave --cpus-per-host out, or use a machine whose cgroups you may write.",
        ) from error


def quota_of(folder: Path, host: str) -> Path | None:
    """Return the file that a process of this host writes itself into; None: the host has no quota."""
    try:
        return Path((folder / "quotas" / host).read_text())
    except FileNotFoundError:
        return None


def remove_quotas(name: str) -> None:
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
    version_1 = _CGROUPS / "cpu"
    return (version_1 if version_1.is_dir() else _CGROUPS) / f"cingulum-testbed-{name}"


def _is_version_2(top: Path) -> bool:
    return (top.parent / "cgroup.controllers").exists()
