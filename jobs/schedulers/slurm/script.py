"""Render a job and a site to the script that Slurm runs: a pure function.

Values reach the script in two ways only: as bash words (`quote`, `words` and `expanding` below), and as
options in `#SBATCH` lines, whose values are plain or were made so. The templates cannot do otherwise: what
they print must be a `Safe` text or a number.
"""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from jobs import containers, mpi
from jobs.sites import Site
from jobs.spec import GRACE_S, Arguments, JobSpec
from jobs.supervisor import mpirun_command
from trainer.errors import JobError

_TOKEN = re.compile(r"[0-9a-f]{16}")
# Slurm's own limit of a script (max_script_size), bytes.
_LONGEST_SCRIPT = 4 * 1024 * 1024
# Slurm reads a #SBATCH line into a buffer of 8192 bytes.
_LONGEST_PATH = 4000


# Variables of the script itself, which would change one of the same name before ranks see it.
_OURS = re.compile(r"asked|command|container|held|host_python|job_folder|module|modules|runs|supervised|task")


class Safe(str):
    """Text that a script may contain unquoted."""


def batch_script(spec: JobSpec, site: Site, folder: Path, token: str) -> str:
    """Return the text of `job.sbatch`.

    Args:
        spec: what to run.
        site: where.
        folder: the job's private folder, seen by all hosts: output and failures go there.
        token: names the submission: 16 hex digits, found again in Slurm's comment of the job.

    Raises:
        JobError: the site cannot run such a job, or a value can be given to no Slurm or no program.
    """
    site = site.of(spec.kind)
    _check(spec, site)
    container = in_container(spec, site, folder)
    runs = spec.run_folders
    text = _template("job.sbatch.j2").render(
        options=[Safe(option) for option in options(spec, site, folder, token)],
        title=Safe(f"{plain_name(spec.name)} ({plain_name(spec.kind)})"),
        before_modules=site.before_modules.strip(),
        modules=site.modules,
        setup=site.setup.strip(),
        settings=_settings(spec, site) if spec.parallel else [],
        scratch=site.scratch,
        environment=[(Safe(k), v) for k, v in {**site.environment, **spec.environment}.items()],
        tasks=[_program(task, in_image=bool(container)) for task in spec.tasks],
        container=container,
        host_python=site.python,
        beside=str(Path(spec.tasks[0][0]).with_name("python"))
        if spec.tasks[0][0].startswith("/")
        else "python3",
        folder=spec.folder,
        job_folder=str(folder),
        supervised=_supervised(spec, site, container, runs),
        runs=runs,
    )
    if len(text.encode()) > _LONGEST_SCRIPT:
        raise JobError(
            f"Job {plain_name(spec.name)}: its script is larger than the 4 MiB that Slurm takes.",
            cure="Put long lists into a file, or submit fewer tasks at once.",
        )
    return text


def options(spec: JobSpec, site: Site, folder: Path, token: str) -> list[str]:
    """Return options of sbatch for `#SBATCH` lines, quoted as Slurm reads them.

    Raises:
        JobError: the folder cannot be written in such a line, or the token is none.
    """
    if not _TOKEN.fullmatch(token):
        raise JobError(f"{token!r} is not the token of a submission.", cure="It has 16 hex digits.")
    resources = spec.resources
    arguments = [f"--job-name={plain_name(spec.name)}", f"--comment=cingulum:{token}"]
    for key in ("partition", "account", "qos"):
        if (value := getattr(site, key)) is not None:
            arguments.append(f"--{key}={value}")
    arguments += [
        f"--nodes={resources.nodes}",
        f"--ntasks-per-node={resources.ranks_per_node}",
        f"--cpus-per-task={resources.cpus_per_rank}",
    ]
    if resources.gpus_per_node:
        arguments.append(_gpus(spec, site))
    if resources.memory_mib is not None:
        arguments.append(f"--mem={resources.memory_mib}M")
    grace_s = spec.grace_s or site.grace_s or GRACE_S
    if (minutes := resources.minutes or site.minutes) is not None:
        arguments.append(f"--time={minutes}")
        # Told to save as soon as it has started, a short job would be started again for ever.
        grace_s = min(grace_s, minutes * 60 // 4)
    if spec.is_array:
        some = f"%{spec.at_once}" if spec.at_once else ""
        arguments.append(f"--array=0-{len(spec.tasks) - 1}{some}")
    log = _slurm_path(folder) + ("/out-%a.log" if spec.is_array else "/out.log")
    arguments += [
        f'--output="{log}"' if _needs_quotes(log) else f"--output={log}",
        "--open-mode=append",
        "--requeue",
        f"--signal=B:USR2@{grace_s}",
    ]
    return _with_site(arguments, site)


def _settings(spec: JobSpec, site: Site) -> list[tuple[str, str, str]]:
    """Return name, value and reason of MPI's network settings, including Open MPI 5's daemons."""
    variables = mpi.settings(site, gpus=spec.resources.gpus_per_node > 0)
    settings: list[tuple[str, str, str]] = [
        (Safe(one.name), one.value, Safe(one.reason)) for one in variables
    ]
    if site.launcher == "mpirun":
        given = {one.name: one.value for one in variables} | site.environment | spec.environment
        keepalive = {f"OMPI_MCA_{name}": value for name, value in mpirun_command.KEEPALIVE.items()}
        why = Safe("What mpirun of Open MPI 4 passes to its daemons, under the names of Open MPI 5.")
        settings += [(Safe(n), value, why) for n, value in mpi.for_prrte(keepalive | given).items()]
    return settings


def _supervised(spec: JobSpec, site: Site, container: list[str], runs: Sequence[str]) -> list[str]:
    """Return the options of supervisor/main.py that are the same for all tasks."""
    resources = spec.resources
    arguments = [f"--requeues={spec.requeues}", f"--ranks-per-node={resources.ranks_per_node}"]
    if spec.shrink:
        arguments.append(f"--least-nodes={resources.least_nodes or resources.nodes}")
    if runs and (resources.minutes or site.minutes) is not None:
        arguments.append("--limited")
    if len(runs) == 1:
        arguments.append(f"--run={runs[0]}")
    if container:
        arguments.append(f"--contained={len(container)}")
    if not spec.parallel:
        return arguments
    arguments.append(f"--launcher={site.launcher}")
    if site.launcher == "srun":
        arguments += [f"--mpi={site.mpi}", *(f"--srun-option={option}" for option in site.srun_options)]
    elif site.mpirun:
        arguments.append(f"--mpirun={site.mpirun}")
    if spec.outlives:
        arguments.append("--outlives")
    return arguments


def _with_site(arguments: list[str], site: Site) -> list[str]:
    """Return all options; of two --gres Slurm would take the last only, so they become one."""
    gpus = next((option for option in arguments if option.startswith("--gres=")), None)
    others = [option for option in site.options if not (gpus and option.startswith("--gres="))]
    more = [option.removeprefix("--gres=") for option in site.options if option not in others]
    return [",".join([option, *more]) if option is gpus else option for option in arguments] + others


def in_container(spec: JobSpec, site: Site, folder: Path) -> list[str]:
    """Return the words before a command that runs in the job's image; none without an image.

    Raises:
        JobError: the site has nothing that runs images under Slurm, or a path is not absolute.
    """
    if spec.image is None:
        return []
    if site.container != "apptainer":
        raise JobError(
            f"The job has an image, but site {site.name!r} names no runtime for it under Slurm.",
            cure="Set `container: apptainer` in its profile, or submit without an image.",
        )
    words = containers.wrap(
        ("program",),
        spec.image,
        [spec.folder, str(folder), *spec.binds],
        spec.resources.gpus_per_node,
        {**site.environment, **spec.environment},
        readonly=spec.readonly,
        folder=spec.folder,
        options=site.container_options,
    )
    return list(words[:-1])


def _program(task: Arguments, *, in_image: bool) -> Arguments:
    """Return the same task with the program's path in the image."""
    return ("cingulum", *task[1:]) if in_image and Path(task[0]).name == "cingulum" else task


def plain_name(text: str) -> str:
    """Return `text` as Slurm can show it: letters, digits, `.`, `_`, `+`, `@` and `-`, 64 at most."""
    return re.sub(r"[^A-Za-z0-9._+@-]+", "_", text).lstrip("-")[:64] or "job"


def _check(spec: JobSpec, site: Site) -> None:
    resources = spec.resources
    ranks, gpus = resources.ranks_per_node, resources.gpus_per_node
    if not spec.folder.startswith("/"):
        raise JobError(f"{spec.folder!r}: the folder to run in is not absolute.")
    if not spec.parallel and (resources.nodes > 1 or ranks > 1):
        raise JobError(
            f"Job {plain_name(spec.name)} is one process, not {resources.nodes} nodes x {ranks} ranks.",
            cure="Ask for one node and one rank.",
        )
    if spec.parallel and gpus and ranks != gpus:
        raise JobError(
            f"{ranks} ranks and {gpus} GPUs on each node: each rank needs its own GPU, each GPU a rank.",
            cure=f"Ask for {gpus} ranks per node.",
        )
    for name in (*site.environment, *spec.environment):
        if _OURS.fullmatch(name):
            raise JobError(f"environment: {name} is a variable of the batch script itself.")
    for task in spec.tasks:
        if task[0].startswith("-") or not task[0]:
            raise JobError(f"{task[0]!r} is not a program: the launcher would read it as an option.")
        if spec.parallel and ":" in task:
            raise JobError("An argument ':' cannot be given to ranks: mpirun and srun read it as theirs.")


def _gpus(spec: JobSpec, site: Site) -> str:
    count = spec.resources.gpus_per_node
    kind = f"{site.gpu_type}:" if site.gpu_type else ""
    if site.gpu_request == "gres":
        return f"--gres=gpu:{kind}{count}"
    if site.gpu_request == "gpus-per-task" and spec.parallel:
        return f"--gpus-per-task={kind}1"
    return f"--gpus-per-node={kind}{count}"


def _slurm_path(folder: Path) -> str:
    """Return `folder` as Slurm's pattern of a file name, to be put in double quotes."""
    text = str(folder)
    if not text.isprintable() or "\\" in text or len(text.encode()) > _LONGEST_PATH or text[:1] != "/":
        raise JobError(
            f"{text!r}: Slurm cannot write to a path with a backslash or a control character, "
            "nor to one that is relative or very long.",
            cure="Set CINGULUM_HOME to a plain absolute path.",
        )
    return text.replace("%", "%%").replace('"', '\\"')


def _needs_quotes(text: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9_./%+@:,-]+", text) is None


@functools.cache
def _template(name: str) -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("jobs"),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701 - no HTML; `finalize` refuses every text that no filter made safe
        finalize=_only_safe,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        quote=lambda text: Safe(quote(text)),
        words=lambda values: Safe(words(values)),
        expanding=lambda text: Safe(expanding(text)),
        lines=lambda text: Safe(_lines(text)),
    )
    return environment.get_template(name)


def _only_safe(value: Any) -> Any:
    if not isinstance(value, (Safe, int)):
        raise TypeError(f"a template prints {value!r} without `quote`")
    return value


def _lines(text: str) -> str:
    """Quote several lines as one bash word over several lines."""
    if text.replace("\n", "").replace("\t", "").isprintable():
        return shlex.quote(f"\n{text}\n")
    return quote(text)


# Quote any text as one word of a bash script: the only way in which values enter rendered scripts.


# $NAME or ${NAME}, as a site's scratch folder may hold.
_VARIABLE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})")
_LINE = 100


def quote(text: str) -> str:
    """Return `text` as one bash word that means exactly `text`, on one line, without unprintable characters.

    Control characters are written as `$'\\x0a'`: a carriage return would make Slurm refuse the script, an
    escape sequence would write to the terminal of its reader.
    """
    if text.isprintable():
        quoted = shlex.quote(text)
        # bash takes `A==b` and `(a,b)` as they are meant; readers and linters do not.
        return f"'{text}'" if quoted == text and (text[0] == "=" or "," in text) else quoted
    return "$'" + "".join(map(_ansi, text)) + "'"


def words(values: Sequence[str]) -> str:
    """Return the inside of a bash array: one line where it fits, else one line per word."""
    quoted = [quote(value) for value in values]
    line = " ".join(quoted)
    return line if len(line) <= _LINE else "\n  " + "\n  ".join(quoted) + "\n"


def expanding(text: str) -> str:
    """Quote like `quote`, but expand `$NAME` and `${NAME}` when the script runs; an unset
    variable ends it.
    """
    parts, end = [], 0
    for variable in _VARIABLE.finditer(text):
        if variable.start() > end:
            parts.append(quote(text[end : variable.start()]))
        parts.append(f'"${{{variable[1] or variable[2]}:?}}"')
        end = variable.end()
    if end < len(text) or not parts:
        parts.append(quote(text[end:]))
    return "".join(parts)


def _ansi(character: str) -> str:
    if character in "\\'":
        return "\\" + character
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode())
