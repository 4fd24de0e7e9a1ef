"""Slurm on a testbed: munged, slurmdbd with MariaDB, slurmctld, one slurmd per host, and their files."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

from jobs.testbed import namespaces, programs
from jobs.testbed.layout import CONTROLLER, Settings, address
from trainer.errors import LauncherError

CONTROLLER_SECONDS = 30
_DATABASE_SECONDS = 60
_CONTROLLER_PORT = 6817
_DATABASE_PORT = 6819


def environment(folder: Path) -> dict[str, str]:
    """Return the environment that points Slurm's programs to this cluster."""
    return {"SLURM_CONF": f"{folder}/etc/slurm.conf"}


def write(settings: Settings, folder: Path) -> None:
    """Write Slurm's configuration, munge's key, and the device files of the emulated GPUs."""
    etc = folder / "etc"
    (etc / "slurm.conf").write_text(slurm_conf(settings, folder))
    (etc / "gres.conf").write_text(gres_conf(settings, folder))
    (etc / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # else slurmd looks for one, and may die
    (etc / "slurmdbd.conf").touch(0o600)
    (etc / "slurmdbd.conf").write_text(slurmdbd_conf(folder))
    key = folder / "munge.key"
    key.touch(0o600)
    key.write_bytes(os.urandom(128))
    for name in ("state", "spool", "dev"):
        (folder / name).mkdir()
    for number in range(settings.gpus):
        os.mknod(folder / "dev" / f"gpu{number}", 0o666 | 0o020000, os.makedev(1, 3))


def start_munged(folder: Path) -> None:
    """Start the one munged, of which all hosts see the socket."""
    programs.run(
        [
            *namespaces.enter_switch(folder),
            "munged",
            f"--socket={folder}/munge.socket",
            f"--key-file={folder}/munge.key",
            f"--pid-file={folder}/pids/munged.pid",
            f"--log-file={folder}/log/munged.log",
            f"--seed-file={folder}/munge.seed",
        ],
        "starting munged",
        environment={namespaces.MARK: str(folder)},
    )


def start_controller_host(settings: Settings, folder: Path) -> None:
    """Start slurmctld, and the database where accounting is requested, unless they run."""
    if settings.accounting:
        _start_database(folder)
    if not runs(folder, CONTROLLER, "slurmctld"):
        start_controller(folder)


def start_controller(folder: Path) -> None:
    """Start slurmctld and wait until it answers."""
    daemon(folder, CONTROLLER, ["slurmctld", "-D"], "slurmctld.out")
    wait_for_port(folder, _CONTROLLER_PORT, "slurmctld", CONTROLLER_SECONDS)


def kill_controller(folder: Path) -> None:
    """Kill slurmctld as a crash would."""
    end_daemon(folder, CONTROLLER, "slurmctld")


def stop_controller(folder: Path) -> None:
    """Let slurmctld save its state and end."""
    end_daemon(folder, CONTROLLER, "slurmctld", "TERM")


def start_slurmd(folder: Path, host: str) -> None:
    """Start a host's slurmd; it registers with the controller by itself."""
    spool = folder / "spool" / host
    spool.mkdir(exist_ok=True)
    spool.chmod(0o755)  # jobs read their scripts there
    if not runs(folder, host, "slurmd"):
        daemon(folder, host, ["slurmd", "-D", "-N", host], f"slurmd.{host}.out")


def kill_slurmd(folder: Path, host: str) -> None:
    """Kill a host's slurmd as a crash would; jobs' own processes stay."""
    end_daemon(folder, host, "slurmd")


def runs(folder: Path, host: str, program: str) -> bool:
    """Return whether a daemon runs on a host."""
    first = namespaces.pid(folder, host)
    return first is not None and bool(namespaces.running(first, program))


def end_daemon(folder: Path, host: str, program: str, signal: str = "KILL") -> None:
    """Send a daemon this signal and wait until it is gone.

    Raises:
        LauncherError: it does not run, or does not end.
    """
    first = namespaces.need(folder, host)
    numbers = namespaces.running(first, program)
    if not numbers:
        raise LauncherError(f"{program} does not run on {host}.")
    kill = [*namespaces.enter(first), "kill", f"-{signal}", *map(str, numbers)]
    programs.run(kill, f"killing {program} on {host}")
    programs.wait_for(lambda: not namespaces.running(first, program), f"the end of {program} on {host}", 20)


def daemon(folder: Path, host: str, argv: list[str], log: str) -> None:
    """Start a program in a host that outlives us; its output goes to a file in the testbed's log folder."""
    inside = namespaces.enter(namespaces.need(folder, host))
    cgroup = folder / "quotas" / host
    # A shell in between, so that the host's process 1 becomes the parent.
    script = (
        'umask 022; if [ -e "$1" ]; then echo 0 >"$(cat "$1")"; fi; log=$2; shift 2; '
        'setsid "$@" </dev/null >>"$log" 2>&1 &'
    )
    programs.run(
        [*inside, "sh", "-c", script, "sh", str(cgroup), str(folder / "log" / log), *argv],
        f"starting {argv[0]} on {host}",
        environment={**environment(folder), namespaces.MARK: str(folder)},
    )


def node_states(folder: Path) -> dict[str, str]:
    """Return the state of each node as `sinfo` names it; empty where slurmctld does not answer."""
    if not runs(folder, CONTROLLER, "slurmctld"):
        return {}  # its clients would try for seconds
    try:
        told = client(folder, ["sinfo", "-h", "-N", "-p", "all", "-o", "%N %T"], timeout=10)
    except LauncherError:
        return {}
    return dict(line.split(maxsplit=1) for line in told.splitlines())


def client(folder: Path, argv: list[str], *, timeout: float = 20) -> str:
    """Run one of Slurm's commands as root on the controller's host, and return what it prints."""
    inside = namespaces.enter(namespaces.need(folder, CONTROLLER))
    return programs.run(
        [*inside, *argv], f"asking Slurm ({argv[0]})", environment=environment(folder), timeout=timeout
    )


def wait_for_nodes(folder: Path, hosts: tuple[str, ...], seconds: float) -> None:
    """Wait until all these nodes are idle.

    Raises:
        LauncherError: they are not in time; the message holds their states and the end of slurmctld's log.
    """
    try:
        programs.wait_for(
            lambda: dict.fromkeys(hosts, "idle").items() <= node_states(folder).items(),
            f"idle nodes: {', '.join(hosts)}",
            seconds,
            every=0.1,
        )
    except LauncherError as error:
        states = ", ".join(f"{host} {state}" for host, state in node_states(folder).items())
        raise LauncherError(
            f"{error.message} They are: {states or 'unknown'}.\n{log_end(folder, 'slurmctld.log')}"
        ) from error


def queued(folder: Path) -> list[str]:
    """Return numbers of the jobs that wait or run."""
    return client(folder, ["squeue", "-h", "-o", "%A"]).split()


def cancel_all(folder: Path) -> None:
    """Cancel every job, with all that it runs."""
    if jobs := queued(folder):
        client(folder, ["scancel", "--full", *jobs])


def is_idle(folder: Path, hosts: tuple[str, ...]) -> bool:
    """Return whether there is no job, and all these nodes are idle; resume those that Slurm gave up."""
    states = node_states(folder)
    for host, state in states.items():
        if state.startswith(("down", "drained")):
            # Slurm refuses where the node has come back by itself since it was asked.
            with contextlib.suppress(LauncherError):
                client(folder, ["scontrol", "update", f"NodeName={host}", "State=RESUME"])
    return not queued(folder) and dict.fromkeys(hosts, "idle").items() <= states.items()


def log_end(folder: Path, name: str, lines: int = 10) -> str:
    """Return the last lines of a log of the testbed."""
    try:
        text = (folder / "log" / name).read_text(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def wait_for_port(folder: Path, port: int, program: str, seconds: float) -> None:
    """Wait until a daemon on the controller's host answers on its port."""
    inside = namespaces.enter(namespaces.need(folder, CONTROLLER))
    knock = [*inside, "bash", "-c", f"exec 3<>/dev/tcp/{CONTROLLER}/{port}"]

    def answers() -> bool:
        with contextlib.suppress(LauncherError):
            programs.run(knock, f"knocking at {program}", timeout=5)
            return True
        return False

    try:
        programs.wait_for(answers, f"{program} to answer on port {port}", seconds, every=0.05)
    except LauncherError as error:
        logs = [log_end(folder, f"{program}.{kind}") for kind in ("out", "log")]
        raise LauncherError("\n".join([error.message, *logs])) from error


def _start_database(folder: Path) -> None:
    data = folder / "db"
    handle = data / "mariadb.socket"
    is_new = not data.exists()
    if is_new:
        data.mkdir(mode=0o700)  # the database has no password
        programs.run(
            [
                "mariadb-install-db",
                "--no-defaults",
                f"--datadir={data}",
                "--user=root",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                "--innodb-log-file-size=8M",
            ],
            "making the accounting's database",
            environment={namespaces.MARK: str(folder)},
            timeout=120,
        )
    if not runs(folder, CONTROLLER, "mariadbd"):
        daemon(
            folder,
            CONTROLLER,
            [
                "mariadbd",
                "--no-defaults",
                "--user=root",
                f"--datadir={data}",
                f"--socket={handle}",
                "--skip-networking",
                f"--pid-file={folder}/pids/mariadb.pid",
                # What was committed outlives this process, though not the machine.
                "--innodb-flush-log-at-trx-commit=2",
                "--innodb-buffer-pool-size=64M",
                "--innodb-log-file-size=8M",
                "--innodb-lock-wait-timeout=900",
            ],
            "mariadb.log",
        )
        programs.wait_for(lambda: _accepts(handle), "MariaDB to answer", _DATABASE_SECONDS, every=0.05)
    if not runs(folder, CONTROLLER, "slurmdbd"):
        daemon(folder, CONTROLLER, ["env", f"MYSQL_UNIX_PORT={handle}", "slurmdbd", "-D"], "slurmdbd.out")
        wait_for_port(folder, _DATABASE_PORT, "slurmdbd", _DATABASE_SECONDS)
    if is_new:
        client(folder, ["sacctmgr", "-i", "add", "cluster", "testbed"], timeout=_DATABASE_SECONDS)


def _accepts(handle: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as tried:
        tried.settimeout(5)
        try:
            tried.connect(str(handle))
        except OSError:
            return False
        return True


# The hold of a requeued job and the life of a credential are one number in Slurm (default: 120 s).
_CREDENTIAL_SECONDS = 10


def slurm_conf(settings: Settings, folder: Path) -> str:
    """Return the text of slurm.conf: fast to see faults and to start jobs, and preemption between two
    partitions.

    Jobs in `urgent` take the hosts of those in `all`, which are told (the signal of their `--signal`, else
    SIGTERM), have 30 s to save, and are requeued.
    """
    lines = [
        "ClusterName=testbed",
        f"SlurmctldHost={CONTROLLER}({address(CONTROLLER)})",
        "SlurmUser=root",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        f"AuthInfo=socket={folder}/munge.socket,cred_expire={_CREDENTIAL_SECONDS}",
        "CredType=cred/munge",
        "MpiDefault=pmix",
        f"StateSaveLocation={folder}/state",
        f"SlurmdSpoolDir={folder}/spool/%n",
        f"SlurmctldPidFile={folder}/pids/slurmctld.pid",
        f"SlurmdPidFile={folder}/pids/slurmd.%n.pid",
        f"SlurmctldLogFile={folder}/log/slurmctld.log",
        f"SlurmdLogFile={folder}/log/slurmd.%n.log",
        "SlurmctldDebug=verbose",
        "SlurmdDebug=verbose",
        # Quotas are the testbed's; Slurm's own use of cgroups needs more rights than containers have.
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/linux",
        "JobAcctGatherFrequency=task=1",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory",
        "SlurmdParameters=config_overrides",
        "SchedulerType=sched/backfill",
        "SchedulerParameters=sched_min_interval=100000,batch_sched_delay=0,sched_interval=1,bf_interval=1",
        # Fair shares need accounting; without weights, jobs go in the order of their numbers all the same.
        f"PriorityType=priority/{'multifactor' if settings.accounting else 'basic'}",
        "PreemptType=preempt/partition_prio",
        "PreemptMode=REQUEUE",
        "SlurmctldParameters=preempt_send_user_signal",
        # Faults are seen within seconds; not less, or a busy machine looks like a fault.
        "SlurmctldTimeout=10",
        "SlurmdTimeout=5",
        "MessageTimeout=5",
        "TCPTimeout=2",
        "BatchStartTimeout=10",
        "KillWait=5",
        "WaitTime=5",
        "UnkillableStepTimeout=20",
        "OverTimeLimit=0",
        "ReturnToService=2",
        "JobRequeue=1",
        "MailProg=/bin/true",
    ]
    if settings.gpus:
        lines.append("GresTypes=gpu")
    if settings.accounting:
        lines += [
            "AccountingStorageType=accounting_storage/slurmdbd",
            f"AccountingStorageHost={CONTROLLER}",
            # slurmctld's line to slurmdbd ignores AuthInfo.
            f"AccountingStoragePass={folder}/munge.socket",
        ]
        lines += ["AccountingStorageTRES=gres/gpu"] if settings.gpus else []
    gres = f" Gres=gpu:{settings.gpus}" if settings.gpus else ""
    lines += [
        f"NodeName={host} NodeAddr={address(host)} CPUs={settings.cpus} "
        f"RealMemory={settings.memory_mb}{gres} State=UNKNOWN"
        for host in settings.host_names
    ]
    memory = settings.memory_mb // settings.cpus
    lines += [
        f"PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE DefMemPerCPU={memory} "
        "PriorityTier=1 GraceTime=30 State=UP",
        f"PartitionName=urgent Nodes=ALL MaxTime=INFINITE DefMemPerCPU={memory} PriorityTier=10 State=UP",
    ]
    return "\n".join([*lines, ""])


def gres_conf(settings: Settings, folder: Path) -> str:
    """Return the text of gres.conf: emulated GPUs need a device file each, because Slurm takes a bare count
    for 0.
    """
    files = "0" if settings.gpus == 1 else f"[0-{settings.gpus - 1}]"
    return "".join(
        f"NodeName={host} Name=gpu File={folder}/dev/gpu{files}\n"
        for host in settings.host_names
        if settings.gpus
    )


def slurmdbd_conf(folder: Path) -> str:
    """Return text of slurmdbd.conf."""
    return "\n".join(
        [
            "AuthType=auth/munge",
            f"AuthInfo=socket={folder}/munge.socket",
            f"DbdHost={CONTROLLER}",
            "SlurmUser=root",
            f"LogFile={folder}/log/slurmdbd.log",
            f"PidFile={folder}/pids/slurmdbd.pid",
            "StorageType=accounting_storage/mysql",
            "StorageHost=localhost",
            "StorageUser=root",
            "StorageLoc=slurm_acct_db",
            "CommitDelay=1",
            "",
        ]
    )
