"""Jobs under mpirun without a scheduler: on this host, on hosts over ssh, or in an allocation."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from jobs import mpi
from jobs.local import attended_files, host_checks, host_facts, hostfile, processes, surviving
from jobs.local.attended import Attended, attended_launch
from jobs.local.attended_files import Terms
from jobs.schedulers import registry
from jobs.schedulers.base import PROBED, Launch
from jobs.sites import Site
from jobs.spec import Arguments, JobSpec
from trainer.errors import JobError, WorldError

# MPI's and our own settings reach ranks on other hosts only when mpirun is told to send them.
_FORWARDED = ("CINGULUM_", "HOROVOD_", "TF_", "NCCL_", "OMP_", "PYTHONPATH", "LD_LIBRARY_PATH")
# The URL of the store may hold a password, and no rank needs it.
_KEPT_HERE = ("CINGULUM_STORE",)

# So that a host or a link that is gone is noticed in half a minute; each can be set anew in a site's or a
# job's `environment`. Open MPI 5 is told the same: jobs/mpi.py. Measured:
# docs/how-to/run-on-mpi-hosts.md.
DETECTION = {
    # mpirun asks the daemon of a silent host after 10 s, then every 5 s, and gives it up after the fourth
    # question; by itself it would wait 8 minutes. The daemon does the same, and ends its ranks.
    "OMPI_MCA_oob_tcp_keepalive_time": "10",
    "OMPI_MCA_oob_tcp_keepalive_intvl": "5",
    "OMPI_MCA_oob_tcp_keepalive_probes": "4",
    # Before a daemon has called back there is only ssh to ask for it. BatchMode: nobody is there to type a
    # password.
    "OMPI_MCA_plm_rsh_args": "-o BatchMode=yes -o ConnectTimeout=10 "
    "-o ServerAliveInterval=10 -o ServerAliveCountMax=4",
    # Only the host with mpirun needs a key for the others.
    "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
}
# The attendant asks the hosts itself as well, this often, and ends a start on hosts that have become silent.
CHECK_HOSTS = "CINGULUM_CHECK_HOSTS_S"
_PROBE = (
    *("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", "-o", "RequestTTY=no"),
    *("--", PROBED, "true"),
)


class Mpirun(Attended):
    """Starts jobs with mpirun; see `jobs.schedulers.base.Launcher` for what each method does."""

    name = "mpirun"

    def plan(self, spec: JobSpec, site: Site, folder: Path, token: str) -> Launch:
        """Return the launch; read the site's hostfile and, in an allocation, the scheduler's variables.

        Raises:
            JobError: the hostfile cannot be used, the hosts do not suffice, or a parameter of Open MPI would
                mean something to their shells.
            WorldError: there is no mpirun.
        """
        if not spec.parallel:
            return attended_launch(spec, token, spec.tasks, environment=site.environment, at_once=1)
        hosts = hosts_of(spec, site)
        settings = {one.name: one.value for one in mpi.settings(site, gpus=spec.resources.gpus_per_node > 0)}
        if hosts is None:
            ranks, program = spec.resources.ranks_per_node, _mpirun(site)
            lines = [command(ranks, task, mpirun=program, outlives=spec.outlives) for task in spec.tasks]
            return attended_launch(
                spec,
                token,
                [line for line, _ in lines],
                environment={**lines[0][1], **settings, **site.environment},
                at_once=_side_by_side(spec),
            )
        _with_room(spec, hosts)
        environment = {**_as_root(), **DETECTION, **settings, **site.environment}
        environment |= mpi.for_prrte({**environment, **spec.environment})
        host_checks.check_parameters({**environment, **spec.environment})
        forwarded = [
            *environment,
            *spec.environment,
            "PATH",
            processes.MARK,
            attended_files.RESTARTS,
            attended_files.FAILURES,
        ]
        commands = [
            on_hosts(
                attended_files.hostfile(folder, number),
                task,
                mpirun=_mpirun(site),
                folder=spec.folder,
                forwarded=forwarded,
                outlives=spec.outlives,
            )
            for number, task in enumerate(spec.tasks)
        ]
        allocation = registry.allocation()  # its scheduler vouches for the hosts
        # Where ranks outlive each other, a host that is lost is no reason to end the others.
        check_s = 0.0 if spec.outlives else _seconds({**environment, **spec.environment}.get(CHECK_HOSTS))
        return attended_launch(
            spec,
            token,
            commands,
            environment=environment,
            hosts=hosts,
            probe=_PROBE if allocation is None else allocation.probe,
            check_s=check_s,
            ask_first=allocation is None,
        )

    def preflight(self, spec: JobSpec, site: Site) -> None:
        """Check that enough hosts answer, with the same Open MPI, the same cingulum and room; warn of those
        that do not answer, and of jobs that run there already.

        Raises:
            JobError: the hostfile cannot be used, or the hosts do not suffice.
            WorldError: there is no mpirun.
            LauncherError: mpirun is that of another MPI, too few hosts answer in time, or one differs from
                this one.
        """
        if not spec.parallel:
            return
        mpirun = _mpirun(site)
        mpi.check(mpirun)
        hosts = hosts_of(spec, site)
        if hosts is None:
            if not spec.after:
                host_checks.warn_of_others({socket.gethostname(): host_facts.tokens()})
            return
        fitting = _with_room(spec, hosts)
        if registry.allocation() is None:
            wanted = spec.resources
            needed = (wanted.least_nodes or wanted.nodes) if spec.shrink else wanted.nodes
            host_checks.check(fitting, needed, mpirun=mpirun, spec=spec, site=site)


def hosts_of(
    spec: JobSpec, site: Site, environment: Mapping[str, str] | None = None
) -> dict[str, int] | None:
    """Return slots by host: of the current allocation, else of the site's hostfile; None: this host.

    Args:
        spec: the job.
        site: may name a hostfile.
        environment: with the variables of a scheduler; default: that of this process.

    Raises:
        JobError: the hostfile cannot be read, or the job wants several hosts and has no hostfile.
    """
    allocation = registry.allocation(environment)
    if allocation is not None:
        slots = allocation.slots or (spec.resources.ranks_per_node,) * len(allocation.hosts)
        return dict(zip(allocation.hosts, slots, strict=False))
    if site.hostfile is not None:
        path = Path(site.hostfile).expanduser()
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise JobError(f"{path}: the hostfile of site {site.name} cannot be read: {error}.") from error
        return hostfile.parse(text, str(path), default_slots=spec.resources.ranks_per_node)
    if spec.resources.nodes > 1:
        raise JobError(
            f"{spec.resources.nodes} nodes were asked for, but site {site.name} names no hosts.",
            cure="Write `hostfile: PATH` into the site's profile, or run this within an allocation.",
        )
    return None


def on_hosts(
    hosts: Path,
    argv: Arguments,
    *,
    mpirun: str,
    folder: str,
    forwarded: Sequence[str],
    outlives: bool = False,
) -> list[str]:
    """Return the argument list that starts `argv` on every slot of a hostfile (pure but for the names of
    variables).

    Args:
        hosts: path of the hostfile; as many ranks are started as it has slots.
        argv: the program and its arguments.
        mpirun: path of mpirun.
        folder: to run in, on every host.
        forwarded: names of variables that ranks on other hosts need, besides ours that are set here.
        outlives: whether the others go on when one rank dies: see `jobs.local.surviving`.
    """
    names = set(_to_forward()) | set(forwarded)
    # mpirun sends its own by itself, and complains when it is told to.
    sent = [word for name in sorted(names) if not name.startswith(mpi.ITS_OWN) for word in ("-x", name)]
    words = [mpirun, "--hostfile", str(hosts), "--wdir", folder, "--bind-to", "none", *sent, *argv]
    return surviving.line(words) if outlives else words


def _to_forward() -> list[str]:
    return sorted(key for key in os.environ if key.startswith(_FORWARDED) and key not in _KEPT_HERE)


def _with_room(spec: JobSpec, hosts: Mapping[str, int]) -> list[str]:
    """Return the hosts with enough slots; others are never used. Raises JobError where they are too few."""
    resources = spec.resources
    fitting = [host for host, slots in hosts.items() if slots >= resources.ranks_per_node]
    if len(fitting) < resources.nodes:
        listed = ", ".join(f"{host} ({slots})" for host, slots in hosts.items())
        raise JobError(
            f"{resources.nodes} hosts with {resources.ranks_per_node} slots each were asked for; "
            f"{len(fitting)} of these have that many: {listed}.",
            cure="Ask for fewer nodes or ranks, or raise `slots=` in the hostfile.",
        )
    return fitting


def _seconds(text: str | None) -> float:
    if text is None:
        return Terms.check_s
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise JobError(
            f"environment: {CHECK_HOSTS}: {text!r} is not a duration in s.", cure="0 disables the check."
        )
    return seconds


def _side_by_side(spec: JobSpec) -> int:
    ranks = spec.resources.ranks_per_node * spec.resources.cpus_per_rank
    return max(1, len(os.sched_getaffinity(0)) // ranks)


def _mpirun(site: Site) -> str:
    return site.mpirun or find()


def _as_root() -> dict[str, str]:
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return root if os.geteuid() == 0 else {}


def command(
    ranks: int,
    argv: Sequence[str],
    *,
    hosts: Mapping[str, int] | None = None,
    root: bool | None = None,
    mpirun: str | None = None,
    outlives: bool = False,
) -> tuple[list[str], dict[str, str]]:
    """Return the command, and its additional environment, that starts `argv` on `ranks` ranks.

    Args:
        ranks: the world size.
        argv: the program and its arguments, the same on every rank.
        hosts: ranks that fit on each host, by name; default: this host.
        root: whether we are root, which Open MPI wants confirmed; default: found out.
        mpirun: its path; default: that of `find`.
        outlives: whether the others go on when one rank dies: see `jobs.local.surviving`.

    Returns:
        The argument list, and the environment's additions.

    Raises:
        WorldError: there is no mpirun, or the hosts do not have room for that many ranks.
    """
    if ranks < 1:
        raise WorldError(f"{ranks} ranks cannot be launched.", cure="Give 1 or more.")
    line = [mpirun or find(), "-np", str(ranks)]
    if hosts is not None:
        room = sum(hosts.values())
        if room < ranks:
            raise WorldError(f"{ranks} ranks do not fit on hosts with room for {room}.")
        line += ["--host", ",".join(f"{name}:{slots}" for name, slots in hosts.items())]
        for key in _to_forward():
            line += ["-x", key]
    else:
        # Open MPI counts cores as slots; two hardware threads are one, and ranks may well use both.
        line += ["--oversubscribe"]
    # Ranks that share cores must be free to move; one with cores of its own binds itself to them
    # (trainer/ranks/starting.py), once it knows how many threads it computes with.
    line += ["--bind-to", "none"]
    is_root = os.geteuid() == 0 if root is None else root
    environment = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if is_root else {}
    words = [*line, *argv]
    return surviving.line(words) if outlives else words, environment


def find() -> str:
    """Return the path of the mpirun of this Python environment, else of the site.

    Raises:
        WorldError: there is none.
    """
    beside = Path(sys.executable).parent / "mpirun"
    if beside.exists():
        return str(beside)
    found = shutil.which("mpirun")
    if found is None:
        raise WorldError("mpirun was not found.", cure="Run `make setup`, or load your site's MPI.")
    return found
