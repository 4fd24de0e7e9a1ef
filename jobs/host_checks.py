"""Asks hosts over ssh, all at once, whether a job could run on them, before it is started there."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jobs
from jobs import host_facts
from jobs.sites import Site
from jobs.spec import JobSpec
from trainer.errors import LauncherError

TIMEOUT_S = 30.0
CONNECT_S = 10
_SSH = (
    *("ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S}"),
    *("-o", "RequestTTY=no", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=2"),
)


def check(hosts: Sequence[str], *, mpirun: str, spec: JobSpec, site: Site) -> None:
    """Compare the hosts with this one.

    Args:
        hosts: names, safe to be put on a command line.
        mpirun: its path, the same everywhere.
        spec: the job.
        site: names the network interfaces.

    Raises:
        LauncherError: with a line for each host that does not answer, lacks something or differs.
    """
    # A container does not start where its image, or a folder that it is to see, is not there.
    seen = () if spec.image is None else (spec.image, *spec.binds, *spec.readonly)
    words = (mpirun, spec.folder, spec.tasks[0][0], *seen)
    answers = ask(hosts, words)
    here = host_facts.facts(*words)
    troubles = [
        f"{host}: {trouble}"
        for host in hosts
        for trouble in (
            [answers[host]]
            if isinstance(answers[host], str)
            else differences(here, answers[host], site, spec)
        )
    ]
    if troubles:
        raise LauncherError(
            "These hosts cannot run the job:\n  " + "\n  ".join(troubles),
            cure="Mend them, or take them out of the hostfile: see docs/how-to/run-on-mpi-hosts.md.",
        )


def ask(hosts: Sequence[str], words: Sequence[str]) -> dict[str, Any]:
    """What `jobs.host_facts` says on each host; a text instead where it says nothing."""
    # ssh hands the remote shell one text.
    package = str(Path(jobs.__file__).parents[1])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    environment = [f"PYTHONPATH={path}", f"PATH={os.environ.get('PATH', os.defpath)}"]
    remote = shlex.join(["env", *environment, sys.executable, "-m", "jobs.host_facts", *words])
    asked = {
        host: subprocess.Popen(
            [*_SSH, "--", host, remote],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        for host in hosts
    }
    deadline = time.monotonic() + TIMEOUT_S
    return {host: _answer(process, deadline) for host, process in asked.items()}


def _answer(process: subprocess.Popen[str], deadline: float) -> Any:
    try:
        out, err = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"does not answer within {TIMEOUT_S:g} s"
    said = err.strip().splitlines() or [f"exit code {process.returncode}"]
    if process.returncode == 255:
        return f"cannot be reached by ssh: {said[-1]}"
    if process.returncode != 0:
        return f"cannot run cingulum as it is run here ({sys.executable}): {said[-1]}"
    try:
        # A login shell may greet first.
        return json.loads(out.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return f"answers something else than was asked for: {out.strip()[:200]!r}"


def differences(here: dict[str, Any], there: dict[str, Any], site: Site, spec: JobSpec) -> list[str]:
    """In what a host's facts differ from ours, or do not suffice, a line each."""
    found = []
    if there["openmpi"] != here["openmpi"]:
        found.append(
            f"Open MPI is {there['openmpi'] or 'missing'}; here it is {here['openmpi'] or 'missing'}"
        )
    if there["cingulum"] != here["cingulum"]:
        found.append("its cingulum is another version than the one here")
    if there["python"] != here["python"]:
        found.append(f"Python is {there['python']}; here it is {here['python']}")
    if not there["folder"]:
        found.append(f"the job's folder {spec.folder} is not there; all hosts must see it")
    if here["program"] and not there["program"]:
        found.append(f"the program {spec.tasks[0][0]} is not there")
    # An older cingulum, told above, does not know of it.
    missing = there.get("missing", [])
    found += [f"{path} is not there, or may not be read; all hosts must see it" for path in missing]
    for name in site.interfaces:
        if name not in there["interfaces"]:
            known = ", ".join(there["interfaces"])
            found.append(
                f"there is no network interface {name} (`interfaces` of the site); there are {known}"
            )
    return found
