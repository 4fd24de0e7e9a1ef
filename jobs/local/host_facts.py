"""Print facts about one host as JSON: `python -m jobs.local.host_facts MPIRUN FOLDER PROGRAM [PATH ...]`.

It is run over ssh before a job is started, to compare hosts.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jobs
from jobs.local import processes

MPIRUN_TIMEOUT_S = 20.0


def facts(mpirun: str, folder: str, program: str, *paths: str) -> dict[str, Any]:
    """Return versions, and whether what a job needs exists.

    Args:
        mpirun: path of mpirun.
        folder: that the job runs in.
        program: first word of what every rank runs.
        paths: what else the job needs: an image, and what its containers are to see.

    Returns:
        `cingulum` (a digest of its code), `openmpi` ("" where mpirun cannot be run), `python`,
        `interfaces` (network), `folder` and `program` (whether they are there), `missing` (of the paths),
        `tokens` (of this user's jobs that run there).
    """
    return {
        "cingulum": code_digest(),
        "openmpi": _openmpi(mpirun),
        "python": sys.version.split()[0],
        "interfaces": sorted(path.name for path in Path("/sys/class/net").glob("*")),
        "folder": os.access(folder, os.R_OK | os.X_OK),
        "program": shutil.which(program, path=_path(folder)) is not None,
        "missing": [path for path in paths if not os.access(path, os.R_OK)],
        "tokens": tokens(),
    }


def tokens() -> list[str]:
    """Return the tokens of this user's attended jobs on this host, except the job that runs us."""
    found = {mark.partition(".")[0] for _, mark in processes.marks()}
    return sorted(found - {os.environ.get(processes.MARK, "").partition(".")[0]})


def code_digest() -> str:
    """Return a digest of the code: equal digests mean equal code of cingulum."""
    digest = hashlib.sha256()
    packages = Path(jobs.__file__).parents[1]
    for name in ("cingulum", "jobs", "trainer"):
        for path in sorted((packages / name).rglob("*.py")):
            digest.update(f"{path.relative_to(packages)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _openmpi(mpirun: str) -> str:
    try:
        ran = subprocess.run(
            [mpirun, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=MPIRUN_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    first, _, _ = ran.stdout.partition("\n")
    return first.rpartition(" ")[2] if ran.returncode == 0 else ""


def _path(folder: str) -> str:
    # mpirun looks beside itself, too, and for a relative name in the working folder.
    return os.pathsep.join([os.environ.get("PATH", os.defpath), folder])


if __name__ == "__main__":
    print(json.dumps(facts(*sys.argv[1:])))  # noqa: T201
