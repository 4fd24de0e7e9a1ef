"""Build the command that starts the ranks of a job, by mpirun or srun, and handle the processes of a start.

A command that would start no ranks, or each rank in a world of its own, is refused.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence

# A host that no longer answers is missed after 40 s, not after 8 minutes.
KEEPALIVE = {"oob_tcp_keepalive_time": "10", "oob_tcp_keepalive_intvl": "10", "oob_tcp_keepalive_probes": "3"}
# What the mpirun of another MPI says of its version: seen of Intel MPI 2021.18 and MPICH 5.0.
OTHER_MPIS = {
    "Intel(R) MPI": "Intel MPI",
    "HYDRA": "MPICH, or of an MPI made from it, such as Cray MPICH or MVAPICH",
}
_NO_TERM = "--block-signal=TERM"
# An image may have to be unpacked first.
_ASK_S = 120.0


class Refused(Exception):
    """The ranks cannot be started in this way: bad input, which stays bad."""


class RankLauncher(NamedTuple):
    """How ranks are started.

    Attributes:
        name: `mpirun` or `srun`; "": the job is one process, which nothing starts.
        ranks_per_node: on each host.
        mpirun: as the site's profile names it; None: the one beside the program, else the one on PATH.
        mpi: plugin of srun.
        srun_options: further ones.
        outlives: whether ranks go on when another one dies: asynchronous training.
        contained: words of the command that start a container, before those that run in it.
    """

    name: str
    ranks_per_node: int
    mpirun: Optional[str] = None
    mpi: str = ""
    srun_options: Sequence[str] = ()
    outlives: bool = False
    contained: int = 0


class RankCommand(NamedTuple):
    """A command and all of its environment."""

    line: List[str]
    environment: Dict[str, str]


def prepare(
    launcher: RankLauncher, nodes: int, command: Sequence[str], inherited: Mapping[str, str]
) -> RankCommand:
    """Return the command for this task on `nodes` hosts: after the loss of one there may be fewer.

    Args:
        launcher: that is to be used.
        nodes: hosts of this start.
        command: of a rank.
        inherited: the environment so far.

    Raises:
        Refused: it cannot be started.
    """
    environment = dict(inherited)
    line = list(command)
    if launcher.name:
        # A job submitted with --export=NONE still hands its environment to the ranks.
        environment["SLURM_EXPORT_ENV"] = "ALL"
        ranks = str(nodes * launcher.ranks_per_node)
        start = _srun if launcher.name == "srun" else _mpirun
        line = [*start(launcher, ranks, command, environment), *command]
    _need("apptainer" if launcher.contained else command[0])
    return RankCommand(line, environment)


def whose(said: str) -> Optional[str]:
    """Return the MPI to which an mpirun with this version text belongs; None: it may be Open MPI's."""
    return next((name for mark, name in OTHER_MPIS.items() if mark in said), None)


def _srun(
    launcher: RankLauncher, ranks: str, command: Sequence[str], environment: Dict[str, str]
) -> List[str]:
    # Slurm 22.05 and 23.02 ask for one core per task unless told by this; the others read the other one.
    environment["SRUN_CPUS_PER_TASK"] = environment.get("SLURM_CPUS_PER_TASK", "1")
    if not re.search(r"(?<!\w)%s(?!\w)" % re.escape(launcher.mpi), _told(["srun", "--mpi=list"])):
        raise Refused(
            "this srun cannot start MPI with --mpi=%s; use 'launcher: mpirun' in the site's profile."
            % launcher.mpi
        )
    # The first rank that fails ends the step, all its ranks with it; asynchronous training goes on.
    end = ["--kill-on-bad-exit=1"]
    if launcher.outlives:
        end = ["--kill-on-bad-exit=0", "--wait=0", "--no-kill"]
    return ["srun", "--mpi=" + launcher.mpi, *launcher.srun_options, "--ntasks=" + ranks, *end]


def _mpirun(
    launcher: RankLauncher, ranks: str, command: Sequence[str], environment: Dict[str, str]
) -> List[str]:
    # mpirun starts one daemon on each host by srun; with this it would get the cores of a single rank.
    environment.pop("SRUN_CPUS_PER_TASK", None)
    mpirun = launcher.mpirun or _beside(command, "mpirun") or "mpirun"
    _check_mpirun(mpirun, command[: launcher.contained])
    if os.getuid() == 0:  # only in containers and on testbeds
        environment.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    # Slurm sends SIGTERM to every process when it takes the hosts away. The ranks save; mpirun and its
    # daemons would kill them within a second, so they do not get it (coreutils 8.31 or newer).
    without_term = ["env"]
    if ends_well(["env", _NO_TERM, "true"]):
        without_term.append(_NO_TERM)
    # Open MPI 5 has other names for what Open MPI 4 is told here, and passes over those.
    environment["PRTE_MCA_prte_launch_agent"] = " ".join([*without_term, "prted"])
    program = [mpirun]
    if launcher.outlives:
        environment["PRTE_MCA_state_base_recoverable"] = "1"
        program += ["--mca", "orte_enable_recovery", "1"]
        python = _beside(command, "python")
        if python and ends_well([python, "-c", "import jobs.local.surviving"]):
            # Which gives mpirun the same, and ends it when the run says so.
            program = [python, "-m", "jobs.local.surviving", mpirun]
    line = [*without_term, *program, "-np", ranks]
    line += ["--mca", "orte_launch_agent", " ".join([*without_term, "orted"])]
    for name, value in KEEPALIVE.items():
        line += ["--mca", name, value]
    # Not bound to cores: Horovod's thread would share the one of its rank.
    return [*line, "--bind-to", "none"]


def _beside(command: Sequence[str], name: str) -> Optional[str]:
    """Return a program in the folder of the command, which belongs to the MPI that it was built with."""
    path = Path(command[0]).with_name(name)
    return str(path) if path.is_absolute() and os.access(str(path), os.X_OK) else None


def _check_mpirun(mpirun: str, container: Sequence[str]) -> None:
    _need(mpirun)
    here = socket.gethostname()
    output = _told([mpirun, "--version"])
    if whose(output):  # each of its ranks would train alone
        raise Refused(
            "%s on %s belongs to MPICH, Cray MPICH or Intel MPI. Horovod is built with Open MPI here: "
            "load a module with it, or name its mpirun in the site's profile." % (mpirun, here)
        )
    if container:
        outside, inside = _series(output), _series(_told([*container, "mpirun", "--version"]))
        if outside and inside and outside != inside:  # ranks in the image would not find each other
            raise Refused(
                "Open MPI is %s on %s (%s) and %s in the image. Build the image with the host's version "
                "(--build-arg OPENMPI=...), or load another module." % (outside, here, mpirun, inside)
            )


def _need(program: str) -> None:
    if shutil.which(program) is None:
        raise Refused("%s: there is no such program on %s." % (program, socket.gethostname()))


def _series(said: str) -> str:
    found = re.search(r"Open MPI\) (\d+\.\d+)", said)
    return found.group(1) if found else ""


def _told(line: Sequence[str]) -> str:
    """Return a command's output, whether it fails or not; "": it takes too long, or does not exist."""
    try:
        done = subprocess.run(
            line,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_ASK_S,
            check=False,
            preexec_fn=free_signals,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace")


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
