"""Text of Slurm's configuration files for a testbed, as pure functions."""

from __future__ import annotations

from pathlib import Path

from jobs.testbed.layout import CONTROLLER, Settings, address

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
