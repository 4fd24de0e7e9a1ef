"""Render a job and a site to the script that a scheduler runs: what is the same under all of them, pure.

Values reach the script in two ways only: as bash words (`quote`, `words` and `expanding` below), and in the
scheduler's own lines, whose values are plain or were made so. The template cannot do otherwise: what it
prints must be a `Safe` text or a number.
"""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from jobs import containers, mpi
from jobs.sites import Site
from jobs.spec import Arguments, JobSpec
from jobs.supervisor import mpirun_command
from trainer.errors import JobError

# Variables of the script itself, which would change one of the same name before ranks see it.
_OURS = re.compile(r"asked|command|container|held|host_python|job_folder|module|modules|runs|supervised|task")


class Safe(str):
    """Text that a script may contain unquoted."""


@dataclass(frozen=True)
class SchedulerLines:
    """What a script says in a scheduler's own words.

    Attributes:
        directives: lines that the scheduler reads.
        label: bash words for the scheduler's name of the job, or of the task `$task` of an array.
        task: bash words for the number of the task, from 0.
        save_by: signals, without SIG, that ask to save.
        told_by: how they come about, for readers of the script, after "Told to save".
        by_mpirun: whether mpirun starts the ranks, rather than the scheduler.
    """

    directives: Sequence[str]
    label: str
    task: str
    save_by: Sequence[str] = ("USR2",)
    told_by: str = ""
    by_mpirun: bool = True


def render(spec: JobSpec, site: Site, folder: Path, lines: SchedulerLines, supervised: Sequence[str]) -> str:
    """Return the text of a script.

    Args:
        spec: what to run.
        site: where, for this kind of job.
        folder: the job's private folder, seen by all hosts.
        lines: the scheduler's.
        supervised: options of the supervisor that are the same for all tasks.

    Raises:
        JobError: the site cannot run such a job, or a value can be given to no program.
    """
    check(spec, site)
    container = in_container(spec, site, folder)
    text = _template("job.sh.j2").render(
        directives=[Safe(line) for line in lines.directives],
        label=Safe(lines.label),
        task=Safe(lines.task),
        save_by=[Safe(name) for name in lines.save_by],
        all_of_them=Safe(" ".join(lines.save_by)),
        told_by=Safe(lines.told_by),
        title=Safe(f"{plain_name(spec.name)} ({plain_name(spec.kind)})"),
        before_modules=site.before_modules.strip(),
        modules=site.modules,
        setup=site.setup.strip(),
        settings=_settings(spec, site, lines.by_mpirun) if spec.parallel else [],
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
        supervised=list(supervised),
        runs=spec.run_folders,
    )
    return text


def _settings(spec: JobSpec, site: Site, by_mpirun: bool) -> list[tuple[str, str, str]]:
    """Return name, value and reason of MPI's network settings, including Open MPI 5's daemons."""
    variables = mpi.settings(site, gpus=spec.resources.gpus_per_node > 0)
    settings: list[tuple[str, str, str]] = [
        (Safe(one.name), one.value, Safe(one.reason)) for one in variables
    ]
    if by_mpirun:
        given = {one.name: one.value for one in variables} | site.environment | spec.environment
        keepalive = {f"OMPI_MCA_{name}": value for name, value in mpirun_command.KEEPALIVE.items()}
        why = Safe("What mpirun of Open MPI 4 passes to its daemons, under the names of Open MPI 5.")
        settings += [(Safe(n), value, why) for n, value in mpi.for_prrte(keepalive | given).items()]
    return settings


def in_container(spec: JobSpec, site: Site, folder: Path) -> list[str]:
    """Return the words before a command that runs in the job's image; none without an image.

    Raises:
        JobError: the site has nothing that runs images under a scheduler, or a path is not absolute.
    """
    if spec.image is None:
        return []
    if site.container != "apptainer":
        raise JobError(
            f"The job has an image, but site {site.name!r} names no runtime for it under a scheduler.",
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
    """Return `text` as schedulers can show it: letters, digits, `.`, `_`, `+`, `@` and `-`, 64 at most."""
    return re.sub(r"[^A-Za-z0-9._+@-]+", "_", text).lstrip("-")[:64] or "job"


def check(spec: JobSpec, site: Site) -> None:
    """Refuse a job that no scheduler's script can run.

    Raises:
        JobError: it says why.
    """
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
            raise JobError("An argument ':' cannot be given to ranks: launchers read it as theirs.")


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

    Control characters are written as `$'\\x0a'`: for a carriage return a scheduler would refuse the script,
    an escape sequence would write to the terminal of its reader.
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
