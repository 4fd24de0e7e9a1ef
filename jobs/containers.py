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

import re
from collections.abc import Mapping, Sequence

from trainer.errors import JobError

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
