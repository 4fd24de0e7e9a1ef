"""Check that an Apptainer image can run here, before a job starts."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from jobs import open_mpi
from jobs.asking import ask
from trainer.errors import JobError, LauncherError

# A large .sif on a slow file system is checked, and without setuid unpacked, before anything in it runs.
ANSWER_S = 120.0
# With these, `--mount` and `--no-eval` are known: jobs.containers.
_OLDEST = {"apptainer": (1, 0), "singularity": (3, 10)}
# In one piece, or the words of two ranks mix.
_HANDSHAKE = "import os; from mpi4py import MPI; os.write(1, b'world %d\\n' % MPI.COMM_WORLD.size)"


@dataclass(frozen=True)
class Runtime:
    """The container runtime: `program`, "apptainer" or "singularity" with or without a path; its version."""

    program: str
    version: tuple[int, ...]


def find_program() -> str:
    """Return `$CINGULUM_APPTAINER`, else the first of apptainer and singularity on PATH, else "apptainer"."""
    named = os.environ.get("CINGULUM_APPTAINER")
    return named or next((name for name in _OLDEST if shutil.which(name)), "apptainer")


def runtime(program: str) -> Runtime:
    """Return the version of this program.

    Raises:
        LauncherError: it is not there, does not answer, or is too old.
    """
    said = _ask([program, "--version"])
    kind = "singularity" if "singularity" in said else "apptainer"
    version = version_of(said)
    if version < _OLDEST[kind]:
        oldest = ".".join(map(str, _OLDEST[kind]))
        raise LauncherError(
            f"{program} is version {_dotted(version)}, which is older than {oldest}.",
            cure="Ask for a newer module (`module avail apptainer`), or set CINGULUM_APPTAINER to its path.",
        )
    return Runtime(program, version)


def named_image(image: str | None) -> str:
    """Return the image's path.

    Raises:
        JobError: no image is named, or its path is not absolute.
    """
    if image is None:
        raise JobError("The apptainer launcher needs an image.", cure="Name it: --image /path/cingulum.sif")
    if not image.startswith("/"):
        raise JobError(f"image: {image!r} is not an absolute path.", cure="Name a .sif file or a sandbox.")
    return image


def check_image(image: str | None) -> str:
    """Return the image's path.

    Raises:
        JobError: no image is named, its path is not absolute, or it does not exist.
    """
    image = named_image(image)
    if not os.access(image, os.R_OK):
        raise JobError(
            f"image: {image} is not there, or you may not read it.",
            cure="Build it in a checkout: apptainer build cingulum.sif docker/apptainer.def",
        )
    return image


def check_mpi(mpirun: str, program: str, image: str) -> None:
    """Compare the host's Open MPI with the image's, then check that two ranks find each other.

    The host's mpirun speaks PMIx to the MPI library in the image. Between minor versions of Open MPI that
    is promised by nobody: ranks hang, crash, or each believe to be alone, and train the same thing.

    Raises:
        LauncherError: the versions differ, or the ranks found no common world.
    """
    host = open_mpi_version(mpirun, _ask([mpirun, "--version"]))
    # As a rank would: what the host's settings do to it is part of the question.
    said = _ask([program, "exec", "--no-eval", "--no-home", image, "mpirun", "--version"])
    inside = open_mpi_version(f"mpirun of {image}", said)
    if host[:2] != inside[:2]:
        raise LauncherError(
            f"Open MPI is {_dotted(host)} on the host ({mpirun}) and {_dotted(inside)} in {image}: ranks "
            "that it starts there would not find each other.",
            cure=f"Build the image with --build-arg OPENMPI={_dotted(host)}, or load a module with Open MPI "
            f"{_dotted(inside[:2])}.",
        )
    ranks = [mpirun, "-np", "2", "--oversubscribe", "--bind-to", "none"]
    if os.geteuid() == 0:
        ranks += ["--allow-run-as-root"]
    cure = f"Build the image with the host's very version: --build-arg OPENMPI={_dotted(host)}"
    ranks += [program, "exec", "--no-eval", "--no-home", image, "python", "-c", _HANDSHAKE]
    said = ask(ranks, seconds=ANSWER_S, doing=f"two ranks of {image}", cure=cure)
    if said.split().count("world") != 2 or set(re.findall(r"world (\d+)", said)) != {"2"}:
        raise LauncherError(
            f"Two ranks of {image}, started by {mpirun} ({_dotted(host)}), did not find each other; "
            f"output: {said.strip()[-300:]!r}",
            cure=f"Host and image speak different PMIx. {cure}",
        )


def open_mpi_version(mpirun: str, text: str) -> tuple[int, ...]:
    """Return the version in the output of Open MPI's mpirun.

    Raises:
        LauncherError: it is another MPI's, whose ranks would not see one another.
    """
    open_mpi.refuse_other(mpirun, text)
    if "Open MPI" not in text:
        raise LauncherError(
            f"{mpirun} is not Open MPI's; its version text is {text.strip()[:100]!r}.",
            cure="Load a module with Open MPI: images are built with no other MPI.",
        )
    return version_of(text)


def version_of(text: str) -> tuple[int, ...]:
    """Return the first version in a program's version text: "mpirun (Open MPI) 4.1.8" -> (4, 1, 8).

    Raises:
        LauncherError: there is none.
    """
    found = re.search(r"\b(\d+)\.(\d+)(?:\.(\d+))?", text)
    if found is None:
        raise LauncherError(f"No version can be read from {text.strip()[:200]!r}.")
    return tuple(int(part) for part in found.groups() if part is not None)


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


def _ask(line: Sequence[str]) -> str:
    return ask(line, seconds=ANSWER_S, cure="Load its module (`module avail`), or choose another --launcher.")
