"""The job to run, its resources and its limits: values only, checked, written to and read from JSON."""

from __future__ import annotations

import dataclasses
import itertools
import json
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainer import batch_environment
from trainer.errors import JobError

Arguments = tuple[str, ...]
# Seconds to save in where neither a job nor its site says how many.
GRACE_S = 120


@dataclass(frozen=True)
class Resources:
    """Resources of one job. World size is `nodes * ranks_per_node`.

    Attributes:
        nodes: hosts.
        least_nodes: hosts that are enough when the job is started again after a host was lost; None: `nodes`.
        ranks_per_node: MPI processes on each host; one per GPU where there are GPUs.
        gpus_per_node: GPUs on each host; 0: train on the CPU.
        cpus_per_rank: cores of each rank.
        memory_mib: memory on each host, MiB; None: the site's default.
        minutes: longest time to run; None: the site's default.
    """

    nodes: int = 1
    least_nodes: int | None = None
    ranks_per_node: int = 1
    gpus_per_node: int = 0
    cpus_per_rank: int = 1
    memory_mib: int | None = None
    minutes: int | None = None

    def __post_init__(self) -> None:
        for name in ("nodes", "ranks_per_node", "cpus_per_rank"):
            if getattr(self, name) < 1:
                raise JobError(f"{name}: {getattr(self, name)} is too few.", cure="Give 1 or more.")
        if self.least_nodes is not None and not 1 <= self.least_nodes <= self.nodes:
            raise JobError(f"least_nodes: {self.least_nodes} is not between 1 and nodes ({self.nodes}).")
        if self.gpus_per_node < 0:
            raise JobError(f"gpus_per_node: {self.gpus_per_node} is negative.", cure="Give 0 for the CPU.")
        for name in ("memory_mib", "minutes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise JobError(f"{name}: {value} is too little.", cure="Give 1 or more, or leave it out.")


@dataclass(frozen=True)
class JobSpec:
    """One job: the command of every rank, and its terms.

    Attributes:
        name: as Slurm shows it; any text, made safe where it is used.
        kind: "train", "crossval", "import", "evaluate", "report" or "command"; says how the result is shown.
        tasks: for every task of the job, the command and its arguments, run as they are, without a shell.
            One task: an ordinary job. Several: an array (k folds, seeds).
        folder: absolute path of the folder to run in.
        resources: of each task.
        parallel: whether every rank runs the command (under MPI), or one process does (import, report).
        at_once: tasks of an array that may run side by side; None: all.
        after: labels of jobs that must have completed with exit code 0 first.
        requeues: how often a task is started again after a rank, a host or the network failed. Being
            preempted, or stopped at its time limit (exit code 75), does not count.
        shrink: whether a task that is started again may do without the hosts that failed, down to
            `least_nodes`.
        global_batch: samples of one update (of one micro-batch, where gradients are accumulated): a training
            that goes on with fewer hosts takes as many as share it evenly; None: any number will do.
        outlives: whether ranks go on when another one dies: asynchronous training.
        grace_s: seconds between the request to save (SIGUSR2) and the end of the time limit; None: as the
            profile of a Slurm site says, else GRACE_S.
        environment: variables for every rank, besides the site's.
        image: container image for the docker and apptainer launchers, and for Slurm with a container runtime.
        binds: host folders that the container sees at the same path, besides `folder`.
        readonly: host folders that it sees at the same path and cannot change, also within the others.
        run: absolute path of the run folder that it is about; None: of none, or noted before format 2.
    """

    name: str
    kind: str
    tasks: tuple[Arguments, ...]
    folder: str
    resources: Resources = field(default_factory=Resources)
    parallel: bool = True
    at_once: int | None = None
    after: tuple[str, ...] = ()
    requeues: int = 3
    shrink: bool = False
    global_batch: int | None = None
    outlives: bool = False
    grace_s: int | None = None
    environment: dict[str, str] = field(default_factory=dict)
    image: str | None = None
    binds: tuple[str, ...] = ()
    readonly: tuple[str, ...] = ()
    run: str | None = None

    def __post_init__(self) -> None:
        if not self.tasks or not all(self.tasks):
            raise JobError(f"Job {self.name!r} has nothing to run.")
        check_texts("The name of a job", [self.name])
        for number, task in enumerate(self.tasks):
            check_texts(f"Job {self.name!r}: an argument of task {number}", task)
        paths = [self.folder, *self.binds, *self.readonly, *([] if self.image is None else [self.image])]
        check_texts(f"Job {self.name!r}: a path", paths)
        check_variables(self.environment)
        if self.at_once is not None and self.at_once < 1:
            raise JobError(f"at_once: {self.at_once} is too few.", cure="Give 1 or more, or leave it out.")
        if self.requeues < 0 or (self.grace_s or 0) < 0:
            raise JobError("requeues and grace_s cannot be negative.", cure="Give 0 or more.")

    @property
    def is_array(self) -> bool:
        """Whether there are several tasks."""
        return len(self.tasks) > 1

    @property
    def run_folders(self) -> tuple[str, ...]:
        """The run folder of each task; empty where a job trains in none, or the folder is not known."""
        if self.run is None or self.kind not in ("train", "crossval"):
            return ()
        if self.kind == "train":
            return (self.run,) * len(self.tasks)
        # As jobs/requests/chains.py writes them; `trainer.crossval.folds` names the folders.
        chosen = [dict(itertools.pairwise(task)) for task in self.tasks]
        if not all("--fold" in one and "--seed" in one for one in chosen):
            return ()
        return tuple(posixpath.join(self.run, f"fold-{one['--fold']}-seed-{one['--seed']}") for one in chosen)

    def to_json(self) -> str:
        """Return all of it, as `from_json` reads it."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> JobSpec:
        """Return the job that `to_json` wrote.

        Raises:
            JobError: not such a text.
        """
        try:
            stored: dict[str, Any] = json.loads(text)
            return cls(
                **{
                    **stored,
                    "tasks": tuple(tuple(task) for task in stored["tasks"]),
                    "resources": Resources(**stored["resources"]),
                    "after": tuple(stored["after"]),
                    "binds": tuple(stored["binds"]),
                    "readonly": tuple(stored.get("readonly", ())),
                }
            )
        except (ValueError, TypeError, KeyError) as error:
            raise JobError(f"Not a job specification: {error}.") from error


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# bash sets these itself, or reads its own script by them.
_OF_THE_SHELL = re.compile(
    r"_|BASH.*|COMP_.*|DIRSTACK|ENV|EPOCH.*|EUID|FUNCNAME|GLOBIGNORE|GROUPS|HISTCMD|IFS|LINENO|MAPFILE|OLDPWD"
    r"|OPTARG|OPTERR|OPTIND|PIPESTATUS|POSIXLY_CORRECT|PPID|PS[0-4]|PWD|RANDOM|READLINE_.*|REPLY|SECONDS"
    r"|SHELLOPTS|SHLVL|SRANDOM|UID"
)
# Words in the name of a variable that holds a secret, rather than the path of a file with one.
_SECRET = re.compile(
    r"(?!.*_(FILE|PATH)$).*(PASSW(OR)?D|PASSPHRASE|_(PASS|PWD)$|CREDENTIAL|API_?KEY|(PRIVATE|ACCESS)_KEY"
    r"|(SECRET|TOKEN)S?(_|$))",
    re.IGNORECASE,
)
# user:password@ in a URL; without its scheme, which would take quadratic time to look for in a long word.
_SECRET_URL = re.compile(r"://[^\s/:@]*:[^\s/@]+@")
# Linux hands no longer single text to a program (MAX_ARG_STRLEN, with its end).
LONGEST = 128 * 1024 - 1


def check_variables(environment: Mapping[str, str]) -> None:
    """Raise JobError for a variable that cannot be set, would change how a script is read, or is a secret.

    Scripts, the store and a job's folder hold these variables in clear.
    """
    for name, value in environment.items():
        if not _NAME.fullmatch(name):
            raise JobError(f"environment: {name!r} is not the name of a variable.")
        if _OF_THE_SHELL.fullmatch(name) or name.startswith(batch_environment.PREFIXES):
            raise JobError(f"environment: {name} belongs to the shell or a scheduler, and cannot be set.")
        if _SECRET.match(name):
            raise JobError(
                f"environment: {name} looks like a secret, and would be written into a script.",
                cure=f"Export {name} in the shell from which you submit, or keep it in a file of mode 0600.",
            )
        check_texts(f"environment: {name}", [f"{name}={value}"])


def check_texts(what: str, texts: Iterable[str]) -> None:
    """Raise JobError for a text that no program can be given, or a URL with a password in it.

    `what` names it in the message, which does not repeat it.
    """
    for text in texts:
        if "\0" in text:
            raise JobError(f"{what} holds a NUL byte.")
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            raise JobError(f"{what} holds bytes that are not UTF-8 text.", cure="Rename the file.") from None
        if size > LONGEST:
            raise JobError(f"{what}: {size} bytes are more than a program's argument may hold ({LONGEST}).")
        if _SECRET_URL.search(text):
            raise JobError(
                f"{what} holds a URL with a password, and jobs are kept and shown in plain text.",
                cure="Leave the password out; keep it in a file such as ~/.netrc or ~/.pgpass.",
            )
