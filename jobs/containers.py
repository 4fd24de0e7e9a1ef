"""Command line of one rank in an Apptainer container, as a pure function.

Hybrid launch: the MPI of the host (mpirun or srun) starts one container per rank, and the MPI library in the
image talks to it. What that asks of the container:

- No `--cleanenv`: the launcher tells a rank who it is through its environment (PMIX_*, OMPI_*, SLURM_*,
  CUDA_VISIBLE_DEVICES). Without it every rank would be a world of its own. What must not come in from the
  host (PYTHONPATH, OPAL_PREFIX and the like) the image sets for itself: `%environment` in apptainer.def.
- No `--contain`, `--pid` or `--ipc`: ranks of a host share memory and the launcher's sockets in /tmp.
- `--no-home`: packages in ~/.local and settings in the home folder would change what the image computes.
- `--no-eval`: otherwise a shell in the container evaluates `$(...)` in the values of variables.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jobs import mpi
from jobs.programs import ask
from trainer.errors import JobError, LauncherError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def wrap(
    argv: Sequence[str],
    image: str,
    binds: Sequence[str],
    gpus: int,
    environment: Mapping[str, str],
    *,
    readonly: Sequence[str] = (),
    folder: str | None = None,
    options: Sequence[str] = (),
    home: bool = False,
    program: str = "apptainer",
) -> tuple[str, ...]:
    """Return the command that runs `argv` inside the image as the calling user.

    Args:
        argv: command and arguments as the image knows them ("cingulum", not a path of the host).
        image: absolute path of a .sif file or of a sandbox folder.
        binds: absolute paths that the container sees where the host has them; the job's folder among them.
        gpus: GPUs on each host; above 0 the host's NVIDIA driver is brought in (`--nv`; not run on a GPU).
        environment: variables for the rank; they win over the image's own.
        readonly: absolute paths that it sees there as well and cannot change, also within `binds`.
        folder: absolute path to run in, within `binds`; default: where the launcher starts the rank.
        options: further options of `apptainer exec`; they come last, so they win.
        home: whether the home folder is seen as well.
        program: "apptainer", or "singularity" where the site still calls it that; or the path of one.

    Returns:
        An argument list, each value in one word of its own.

    Raises:
        JobError: there is nothing to run, a path is not absolute, or a name is not one of a variable.
    """
    if not argv:
        raise JobError("There is nothing to run in the container.")
    named = [("image", image), *(("bind", path) for path in (*binds, *readonly))]
    if folder is not None:
        named.append(("folder", folder))
    for what, path in named:
        if not path.startswith("/"):
            raise JobError(f"{what}: {path!r} is not an absolute path.", cure="Begin it with '/'.")
    for name, value in environment.items():
        if not _NAME.fullmatch(name):
            raise JobError(f"environment: {name!r} is not the name of a variable.")
        if "\0" in value:
            raise JobError(f"environment: the value of {name} holds a NUL byte.")
    prefix = "SINGULARITYENV_" if program.endswith("singularity") else "APPTAINERENV_"
    variables = [f"{prefix}{name}={environment[name]}" for name in sorted(environment)]
    line = ["env", *variables] if variables else []
    line += [program, "exec", "--no-eval"]
    if not home:
        line += ["--no-home"]
    if gpus:
        line += ["--nv"]
    line += [f"--mount={_mount(path)}" for path in dict.fromkeys(binds) if path not in readonly]
    line += [f"--mount={_mount(path)},ro" for path in dict.fromkeys(readonly)]
    if folder is not None:
        line += [f"--pwd={folder}"]
    return (*line, *options, image, *argv)


def _mount(path: str) -> str:
    return ",".join(["type=bind", _field("source", path), _field("destination", path)])


def _field(key: str, value: str) -> str:
    """Return one field of a CSV record, quoted where necessary."""
    field = f"{key}={value}"
    return '"' + field.replace('"', '""') + '"' if re.search(r'[,"\s]', field) else field


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
    answer = _ask([program, "exec", "--no-eval", "--no-home", image, "mpirun", "--version"])
    inside = open_mpi_version(f"mpirun of {image}", answer)
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
    output = ask(ranks, seconds=ANSWER_S, doing=f"two ranks of {image}", cure=cure)
    if output.split().count("world") != 2 or set(re.findall(r"world (\d+)", output)) != {"2"}:
        raise LauncherError(
            f"Two ranks of {image}, started by {mpirun} ({_dotted(host)}), did not find each other; "
            f"output: {output.strip()[-300:]!r}",
            cure=f"Host and image speak different PMIx. {cure}",
        )


def open_mpi_version(mpirun: str, text: str) -> tuple[int, ...]:
    """Return the version in the output of Open MPI's mpirun.

    Raises:
        LauncherError: it is another MPI's, whose ranks would not see one another.
    """
    mpi.refuse_other(mpirun, text)
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
