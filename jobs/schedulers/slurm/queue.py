"""Hosts and queue by squeue, sinfo and sshare, requested in fixed formats.

No format asks for a job's name: users choose it, with any character in it. Of sinfo, only the last field may
hold anything. The functions that parse are pure.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from jobs.programs import ask
from jobs.schedulers.cluster_view import AccountShare, Host, Picture, Queued
from trainer.errors import LauncherError

ASK_S = 30.0
QUEUE_FORMAT = (
    "JobArrayID:200|,UserName:64|,State:32|,Partition:64|,NumNodes:12|,NumCPUs:12|,NumTasks:12|,tres-alloc:300|,"
    "tres-per-job:300|,tres-per-node:300|,tres-per-task:300|,SubmitTime:24|,StartTime:24|,TimeLimit:24|,NodeList:2000|,Reason:400|"
)
HOST_FORMAT = (
    "NodeHost:255|,PartitionName:64|,StateLong:40|,CPUsState:40|,Memory:20|,AllocMem:20|,Gres:300|,"
    "GresUsed:300|,Reason:400|"
)
SHARE_FIELDS = "Account,User,NormShares,EffectvUsage,FairShare"
_USABLE = frozenset(("idle", "mixed", "allocated", "completing", "planned"))
_WAITS = frozenset(("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"))
_NOTHING = ("", "None", "none", "(null)", "N/A", "Unknown", "NONE")
_CONFIGURATIONS = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/run/slurm/conf/slurm.conf")


def is_here() -> bool:
    """Return whether this is a host of a cluster: Slurm's commands are there, and know which one."""
    configured = "SLURM_CONF" in os.environ or any(Path(path).exists() for path in _CONFIGURATIONS)
    return shutil.which("squeue") is not None and (configured or _is_running())


def look() -> Picture:
    """Ask Slurm.

    Raises:
        LauncherError: it does not answer.
    """
    queue = _asked(["squeue", "--noheader", f"--Format={QUEUE_FORMAT}"])
    hosts = _asked(["sinfo", "--noheader", "--Node", f"--Format={HOST_FORMAT}"])
    shares = ""
    with contextlib.suppress(LauncherError):  # no accounting
        fields = f"--format={SHARE_FIELDS}"
        shares = _asked(["sshare", "--noheader", "--parsable2", f"--users={getpass.getuser()}", fields])
    return Picture("slurm", hosts_in(hosts), queue_in(queue), shares_in(shares, getpass.getuser()))


def queue_in(text: str) -> tuple[Queued, ...]:
    """Parse squeue's output, requested in QUEUE_FORMAT with times as seconds since 1970."""
    jobs = []
    for row in _rows(text, 16):
        job, user, state, partition, nodes, cpus, *resources = row[:11]
        submitted, start, limit, hosts, reason = row[11:]
        waits = state in _WAITS
        jobs.append(
            Queued(
                id=job,
                user=user,
                state=state,
                reason=_said(reason) if waits else "",
                partition=partition,
                nodes=_count(nodes),
                cpus=_count(cpus),
                gpus=_gpus(_count(nodes), *resources),
                hosts="" if waits else _said(hosts),
                submitted=_time(submitted),
                started=None if waits else _time(start),
                expected=_time(start) if waits else None,
                limit=_said(limit),
            )
        )
    return tuple(jobs)


def hosts_in(text: str) -> tuple[Host, ...]:
    """Parse sinfo's output, requested in HOST_FORMAT: a line for each host in each partition."""
    hosts: dict[str, Host] = {}
    for name, partition, state, cpus, memory, used, gres, gres_used, reason in _rows(text, 9):
        if name in hosts:
            hosts[name] = replace(hosts[name], partitions=(*hosts[name].partitions, partition))
            continue
        busy, _, _, total = (_count(one) for one in f"{cpus}/0/0/0".split("/")[:4])
        usable = re.sub("[^a-z]+$", "", state) in _USABLE and not state.endswith("*")
        hosts[name] = Host(
            name=name,
            state=state,
            usable=usable,
            cpus=total,
            cpus_used=busy,
            gpus=gpus_of_gres(gres),
            gpus_used=gpus_of_gres(gres_used),
            memory_mib=_count(memory),
            memory_used_mib=_count(used),
            partitions=(partition,),
            reason="" if usable else _said(reason),
        )
    return tuple(hosts.values())


def shares_in(text: str, user: str) -> tuple[AccountShare, ...]:
    """Parse sshare's output, requested with SHARE_FIELDS."""
    rows = [line.split("|") for line in text.splitlines()]
    return tuple(
        AccountShare(row[0].strip(), _number(row[2]), _number(row[3]), _number(row[4]))
        for row in rows
        if len(row) == 5 and row[1].strip() == user
    )


def gpus_of_gres(text: str) -> int:
    """Return how many GPUs generic resources name: `gpu:2`, `gres:gpu:a100:4(S:0-1),gpu:t4:1`, `gpu`."""
    counts = re.findall(r"\bgpu(?::[^:=,()0-9][^:=,()]*)?(?:[:=]([0-9]+))?", text)
    return sum(int(count or 1) for count in counts)


def gpus_of_tres(text: str) -> int:
    """Return how many GPUs trackable resources name: `cpu=4,gres/gpu=2`, also told by kind alone."""
    whole = re.search(r"\bgres/gpu=([0-9]+)", text)
    if whole is not None:
        return int(whole[1])
    return sum(int(count) for count in re.findall(r"\bgres/gpu:[^=,]+=([0-9]+)", text))


def _gpus(nodes: int, tasks: str, tres: str, per_job: str, per_node: str, per_task: str) -> int:
    """Return how many GPUs a job has, where the cluster accounts for them, else how many it asked for."""
    asked = gpus_of_gres(per_job) or gpus_of_gres(per_node) * nodes or gpus_of_gres(per_task) * _count(tasks)
    return gpus_of_tres(tres) or asked


def _asked(line: Sequence[str]) -> str:
    return ask(line, seconds=ASK_S, environment=_environment(os.environ), cure="`scontrol ping` says more.")


def _environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without what would change the answers."""
    dropped = ("SLURM_", "SQUEUE_", "SINFO_", "SSHARE_")
    kept = {name: value for name, value in given.items() if not name.startswith(dropped)}
    named = {name: given[name] for name in ("SLURM_CONF", "SLURM_CLUSTERS") if name in given}
    return {**kept, **named, "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}


def _is_running() -> bool:
    """Return whether Slurm answers without a configuration file: it may be had from the controller."""
    with contextlib.suppress(LauncherError):
        _asked(["scontrol", "ping"])
        return True
    return False


def _rows(text: str, fields: int) -> Iterator[list[str]]:
    for line in text.splitlines():
        row = [field.strip() for field in line.split("|", fields - 1)]
        if len(row) == fields:
            yield [*row[:-1], row[-1].rstrip("| ")]


def _said(text: str) -> str:
    return "" if text in _NOTHING else text


def _count(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _time(text: str) -> float | None:
    return float(text) if text.isdecimal() else None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
