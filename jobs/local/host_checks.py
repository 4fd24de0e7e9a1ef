"""Check over ssh, in parallel, that hosts can run a job before it starts there."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import jobs
from jobs import home
from jobs.local import host_facts
from jobs.local.attended_files import Terms
from jobs.schedulers import registry
from jobs.sites import Site
from jobs.spec import JobSpec
from trainer.errors import JobError, LauncherError

TIMEOUT_S = 30.0
CONNECT_S = 10
_SSH = (
    *("ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S}"),
    *("-o", "RequestTTY=no", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=2"),
)


# What a shell evaluates between double quotes, and what ends a line.
_ACTIVE = re.compile(r'["$`\\!\x00-\x1f\x7f]')


def check_parameters(environment: Mapping[str, str]) -> None:
    """Check that no shell of another host evaluates a parameter of Open MPI.

    mpirun hands these variables to ssh between double quotes, as part of the command that starts its daemon.

    Raises:
        JobError: one holds a sign that means something there.
    """
    for name, value in environment.items():
        if name.startswith(("OMPI_MCA_", "PRTE_MCA_")) and _ACTIVE.search(value):
            raise JobError(
                f"environment: {name}: the shells of other hosts would evaluate parts of {value!r}.",
                cure='Leave out ", $, `, \\, ! and line breaks.',
            )


class Silent(str):
    """Output of ssh for a host that did not answer, and may do so later."""


class Broken(str):
    """Fault of a host that answered, but not the question."""


def check(hosts: Sequence[str], needed: int, *, mpirun: str, spec: JobSpec, site: Site) -> None:
    """Compare the hosts with this one.

    Args:
        hosts: names, safe to be put on a command line.
        needed: how many are enough to start with; others may be silent, and are then named in a warning.
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
    silent = [f"{host}: {said}" for host, said in answers.items() if isinstance(said, Silent)]
    others = {host: said for host, said in answers.items() if not isinstance(said, Silent)}
    troubles = [
        f"{host}: {trouble}"
        for host, said in others.items()
        for trouble in ([said] if isinstance(said, Broken) else differences(here, said, site, spec))
    ]
    # mpirun, too, talks over these alone.
    troubles += [f"{socket.gethostname()}, this host: {lack}" for lack in _lacking_interfaces(here, site)]
    if troubles or len(others) < needed:
        raise LauncherError(
            "These hosts cannot run the job:\n  " + "\n  ".join([*silent, *troubles]),
            cure="Mend them, or take them out of the hostfile: see docs/how-to/run-on-mpi-hosts.md.",
        )
    if silent:
        listed = "\n  ".join(silent)
        warn(f"the job starts without these hosts while they do not answer:\n  {listed}")
    if not spec.after:
        warn_of_others({host: said["tokens"] for host, said in others.items()})


def warn_of_others(tokens: Mapping[str, Sequence[str]]) -> None:
    """List jobs of this user that run on these hosts already: nothing queues this one behind them.

    Args:
        tokens: of the jobs that run on a host, by its name.
    """
    for token in sorted({token for found in tokens.values() for token in found}):
        where = ", ".join(host for host, found in tokens.items() if token in found)
        warn(
            f"{where}: job {_name(token)} runs there, and this one will share its cores, as there is "
            "no queue. `--after ID` starts it when that one has completed."
        )


@functools.cache
def warn(what: str) -> None:
    """Warn whoever submits, once: a job may be checked several times."""
    sys.stderr.write(f"warning: {what}\n")


def _name(token: str) -> str:
    try:
        return repr(Terms.of(home.planned_path(token)).name)
    except JobError:
        return f"with the token {token}"


def ask(hosts: Sequence[str], words: Sequence[str]) -> dict[str, Any]:
    """Return the answer of `jobs.local.host_facts` on each host; else Silent or Broken.

    Raises:
        LauncherError: there is no ssh.
    """
    if shutil.which("ssh") is None:
        raise LauncherError(
            "ssh was not found.",
            cure=f"Install an ssh client, or use --launcher {' or '.join(registry.schedulers())}.",
        )
    # ssh hands the remote shell one text.
    package = str(Path(jobs.__file__).parents[1])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    environment = [f"PYTHONPATH={path}", f"PATH={os.environ.get('PATH', os.defpath)}"]
    remote = shlex.join(["env", *environment, sys.executable, "-m", "jobs.local.host_facts", *words])
    with contextlib.ExitStack() as files:
        probes = {}
        for host in hosts:
            # Files, not pipes: what ssh leaves running, a shared connection, may hold these open for long.
            out, err = (files.enter_context(tempfile.TemporaryFile()) for _ in range(2))
            process = subprocess.Popen(
                [*_SSH, "--", host, remote], stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )
            probes[host] = (process, out, err)
        deadline = time.monotonic() + TIMEOUT_S
        return {host: _answer(*probe, deadline) for host, probe in probes.items()}


def _answer(process: subprocess.Popen[bytes], out: IO[bytes], err: IO[bytes], deadline: float) -> Any:
    try:
        code = process.wait(timeout=max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return Silent(f"does not answer within {TIMEOUT_S:g} s")
    output, complained = _text(out), _text(err).splitlines() or [f"exit code {code}"]
    if code == 255:
        return Silent(f"cannot be reached by ssh: {complained[-1]}")
    if code != 0:
        return Broken(f"cannot run cingulum as it is run here ({sys.executable}): {complained[-1]}")
    try:
        # A login shell may greet first.
        return json.loads(output.splitlines()[-1])
    except (ValueError, IndexError):
        return Broken(f"unexpected answer: {output[:200]!r}")


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace").strip()


def differences(here: dict[str, Any], there: dict[str, Any], site: Site, spec: JobSpec) -> list[str]:
    """Return how a host's facts differ from ours or do not suffice, a line each."""
    problems = []
    if there["openmpi"] != here["openmpi"]:
        problems.append(
            f"Open MPI is {there['openmpi'] or 'missing'}; here it is {here['openmpi'] or 'missing'}"
        )
    if there["cingulum"] != here["cingulum"]:
        problems.append("its cingulum differs in version from the one here")
    if there["python"] != here["python"]:
        problems.append(f"Python is {there['python']}; here it is {here['python']}")
    if not there["folder"]:
        problems.append(f"the job's folder {spec.folder} is not there; all hosts must see it")
    if here["program"] and not there["program"]:
        problems.append(f"the program {spec.tasks[0][0]} is not there")
    # An older cingulum, told above, does not know of it.
    missing = there.get("missing", [])
    problems += [f"{path} is not there, or may not be read; all hosts must see it" for path in missing]
    return problems + _lacking_interfaces(there, site)


def _lacking_interfaces(facts: dict[str, Any], site: Site) -> list[str]:
    known = ", ".join(facts["interfaces"])
    return [
        f"there is no network interface {name} (`interfaces` of the site); there are {known}"
        for name in site.interfaces
        if name not in facts["interfaces"]
    ]
