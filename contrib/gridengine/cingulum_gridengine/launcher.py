"""Jobs under Grid Engine; `jobs.schedulers.base.Scheduler` tells what each method does."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from cingulum_gridengine import parsing
from jobs.home import home, job_path
from jobs.schedulers import script
from jobs.schedulers.base import ENDED, SUPERVISOR, Allocation, Launch, NoAnswer, TaskState
from jobs.schedulers.cluster_view import Picture
from jobs.schedulers.script import SchedulerLines
from jobs.sites import Site
from jobs.spec import GRACE_S, JobSpec
from jobs.store.ends import noted_in
from trainer import atomic
from trainer.errors import JobError, LauncherError

SCRIPT = "job.sh"
_ASK_S, _SUBMIT_S = 30.0, 60.0
_PE = "cingulum"
# A queue's `notify`: so long before the hard limit Grid Engine begins to end a job, which then stays ended.
_NOTIFY_S = 60
# Options of qsub that the script sets, or that would hide its answer.
_OWN = re.compile("A|N|S|ac?|b|cwd|e|h|hold_jid|j|now|notify|o|q|r|sync|tc?|terse|wd")
_PLAIN = re.compile(r"/[A-Za-z0-9_./+@-]*")


class GridEngine:
    """One cell, reached through Grid Engine's own commands."""

    name = "gridengine"
    variables = ("SGE_ROOT", "SGE_CELL", "SGE_QMASTER_PORT", "SGE_EXECD_PORT")
    place_variable = "SGE_CELL"
    site = Site

    @property
    def place(self) -> str:
        """The cell: SGE_CELL, else `default`."""
        return os.environ.get("SGE_CELL") or "default"

    def is_here(self) -> bool:
        """Return whether qsub is here, and knows its cell."""
        return shutil.which("qsub") is not None and "SGE_ROOT" in os.environ

    def look(self) -> Picture | None:
        """Ask for queues and jobs; None: this is no host of a cell."""
        if not self.is_here():
            return None
        hosts = parsing.hosts(_call(["qstat", "-f", "-xml"]))
        return Picture(self.name, hosts, parsing.queue(_call(["qstat", "-xml", "-u", "*"])))

    def allocation(self, environment: Mapping[str, str]) -> Allocation | None:
        """Return the hosts of the parallel job that a process with this environment is in."""
        path = environment.get("PE_HOSTFILE")
        if not path or not Path(path).is_file():
            return None
        rows = [line.split() for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
        hidden = {"OMPI_MCA_ras": "^gridengine", "OMPI_MCA_plm": "isolated"}
        hosts, slots = tuple(row[0] for row in rows), tuple(int(row[1]) for row in rows)
        return Allocation("Grid Engine", hosts, slots, (), hidden)

    def plan(self, spec: JobSpec, site: Site, folder: Path, token: str) -> Launch:
        """Return the script, and the qsub that submits it."""
        site = site.of(spec.kind)
        lines = SchedulerLines(
            directives=[f"#$ {option}" for option in _options(spec, site, folder, token)],
            label='"$JOB_ID"',
            task="$((SGE_TASK_ID - 1))",
        )
        text = script.render(spec, site, folder, lines, _supervised(spec, site, folder))
        return Launch({SCRIPT: text, **supervisor_sources()}, ("qsub", "-terse", str(folder / SCRIPT)))

    def preflight(self, spec: JobSpec, site: Site) -> str:
        """Ask whether there are queues for such a job; return Grid Engine's words."""
        launch = self.plan(dataclasses.replace(spec, after=()), site, home(), "0" * 16)
        return " ".join(_call(["qsub", "-w", "v"], _SUBMIT_S, text=launch.files[SCRIPT]).split())

    def after(self, command: Sequence[str], externals: Sequence[str]) -> list[str]:
        """Return the qsub for a job that waits for these; its supervisor looks whether they completed."""
        if not externals:
            return list(command)
        tokens = " ".join(folder.name for folder in map(_folder, externals) if folder is not None)
        held = ["-hold_jid", ",".join(externals), "-v", f"CINGULUM_AFTER={tokens}"]
        return [*command[:-1], *held, command[-1]]

    def start(self, launch: Launch, folder: Path, after: Sequence[str]) -> str:
        """Submit; returns the job's number."""
        for name, text in launch.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            atomic.write_private(folder / name, text)
        answer = _call(self.after(launch.command, after), _SUBMIT_S, environment=launch.environment)
        external = answer.strip().partition(".")[0]  # of an array: 4711.1-3:1
        if not external.isdigit():
            raise LauncherError(f"qsub answered {answer.strip()!r} instead of a job id.")
        _remember(external, str(folder))
        return external

    def find(self, token: str) -> str | None:
        """Return the job that was submitted with this token: noted here, or known to Grid Engine."""
        for path in _known().glob("[0-9]*"):
            if path.suffix == "" and Path(path.read_text(encoding="utf-8")).name == token:
                return path.name
        external = parsing.with_context(_call(["qstat", "-xml", "-j", "*"]), token)
        if external is not None:
            _remember(external, str(job_path(token)))
        return external

    def states(self, externals: Sequence[str]) -> dict[str, list[TaskState]]:
        """Return states by qstat; Grid Engine forgets what has ended, of which the job's folder tells."""
        if not externals:
            return {}
        listed = parsing.tasks(_call(["qstat", "-xml", "-u", str(_user())]))
        jobs = {one: {task.task: task for task in listed.get(one, [])} for one in externals}
        for external, known in jobs.items():
            folder = _folder(external)
            if folder is None:
                continue
            count = len(JobSpec.from_json((folder / "spec.json").read_text(encoding="utf-8")).tasks)
            cancelled = {path.suffix for path in _known().glob(f"{external}.*")}
            for task in range(count):
                ended = noted_in(folder, task)
                if task in known and known[task].state != "FAILED":
                    continue
                if ended is not None:
                    known[task] = ended
                elif {".all", f".{task}"} & cancelled:
                    known[task] = TaskState(task, "CANCELLED")
        return {one: [known[task] for task in sorted(known)] for one, known in jobs.items() if known}

    def cancel(self, external: str, task: int | None = None) -> None:
        """Delete it with qdel; what has ended is left unchanged."""
        held = self.states([external]).get(external, [])
        if all(one.state in ENDED for one in held if task in (None, one.task)):
            return
        _remember(f"{external}.{'all' if task is None else task}", "")
        _call(["qdel", external, *_task(task)])

    def requeue(self, external: str, task: int | None = None) -> None:
        """Have it save (it gets USR2) and start again."""
        states = [one.state for one in self.states([external]).get(external, []) if task in (None, one.task)]
        if states and all(one in ENDED for one in states):
            raise JobError(f"Job {external} has ended.", cure="Submit it again: it goes on where it stopped.")
        if "RUNNING" not in states:
            raise JobError(f"Job {external} is in the queue already.")
        _call(["qmod", "-rj", external if task is None else f"{external}.{task + 1}"])

    def hold(self, external: str, task: int | None = None) -> None:
        """Keep what waits in the queue; what runs goes on."""
        _call(["qhold", external, *_task(task)])

    def release(self, external: str, task: int | None = None) -> None:
        """Let what `hold` kept start again."""
        _call(["qrls", external, *_task(task)])

    def is_held(self, external: str, task: int | None = None) -> bool:
        """Return whether some of what waits is kept."""
        states = self.states([external]).get(external, [])
        return any(one.reason == "held" for one in states if task in (None, one.task))

    def nice(self, external: str, task: int | None, by: int) -> None:
        """Lower the priority of what waits, to -1023 at most; 0: as it was."""
        _call(["qalter", "-p", str(-min(by, 1023)), external, *_task(task)])

    def logs(self, folder: Path, external: str, task: int) -> Path:
        """Return the file to which every start appends; Grid Engine counts tasks from 1."""
        is_array = JobSpec.from_json((folder / "spec.json").read_text(encoding="utf-8")).is_array
        return folder / (f"out-{task + 1}.log" if is_array else "out.log")


def supervisor_sources() -> dict[str, str]:
    """Return the supervisor's files, texts by path below the job's folder; `python3 FOLDER` runs them."""
    texts = {"jobs/__init__.py": "", "cingulum_gridengine/__init__.py": ""}
    for part in (resources.files("jobs") / "supervisor").iterdir():
        if part.name.endswith(".py"):
            texts[f"jobs/supervisor/{part.name}"] = part.read_text(encoding="utf-8")
    own = resources.files("cingulum_gridengine") / "supervisor.py"
    texts["cingulum_gridengine/supervisor.py"] = own.read_text(encoding="utf-8")
    texts["__main__.py"] = (
        "import sys\nfrom cingulum_gridengine.supervisor import main\n\nsys.exit(main(sys.argv[1:]))\n"
    )
    return {f"{SUPERVISOR}/{path}": text for path, text in texts.items()}


def _options(spec: JobSpec, site: Site, folder: Path, token: str) -> list[str]:
    """Return options of qsub; those of the site's profile follow, `--l=gpu=1` as `-l gpu=1`."""
    if not _PLAIN.fullmatch(str(folder)):
        raise JobError(
            f"{folder}: Grid Engine cannot write to a path with such characters.",
            cure="Set CINGULUM_HOME to a plain absolute path.",
        )
    _check_options(site)
    resources_, given = spec.resources, [option[2:].partition("=")[::2] for option in site.options]
    log = folder / ("out-$TASK_ID.log" if spec.is_array else "out.log")
    name = script.plain_name(spec.name).replace("@", "_")
    options = ["-S /bin/bash", f"-N j_{name}", f"-ac cingulum={token}"]
    options += [f"-o {log}", "-j y", "-r y", "-notify"]
    options += [f"-{flag} {value}" for flag, value in (("q", site.partition), ("A", site.account)) if value]
    if spec.parallel:
        options.append(f"-pe {dict(given).get('pe', _PE)} {resources_.nodes * resources_.ranks_per_node}")
    if (minutes := resources_.minutes or site.minutes) is not None:
        options.append(f"-l h_rt={minutes * 60 + _NOTIFY_S}")
    if spec.is_array:
        options += [f"-t 1-{len(spec.tasks)}", *([f"-tc {spec.at_once}"] if spec.at_once else [])]
    return options + [f"-{key} {value}".rstrip() for key, value in given if key != "pe"]


def _check_options(site: Site) -> None:
    own = [name for name in (option[2:].partition("=")[0] for option in site.options) if _OWN.fullmatch(name)]
    if own:
        told = f"Site {site.name!r}: options: -{own[0]} is set by the script itself."
        raise JobError(told, cure="Take it out of the site's profile.")


def _supervised(spec: JobSpec, site: Site, folder: Path) -> list[str]:
    resources_, container = spec.resources, script.in_container(spec, site, folder)
    arguments = [f"--requeues={spec.requeues}", f"--contained={len(container)}"]
    if spec.parallel:
        arguments.append(f"--ranks={resources_.nodes * resources_.ranks_per_node}")
        arguments += [f"--mpirun={site.mpirun}"] if site.mpirun else []
        arguments += [f"--forward={name}" for name in {**site.environment, **spec.environment}]
    if len(spec.run_folders) == 1:
        arguments.append(f"--run={spec.run_folders[0]}")
    if (minutes := resources_.minutes or site.minutes) is not None:
        # Not by s_rt: of jobs on several hosts it ends those that it was to warn (8.1.9).
        grace_s = min(spec.grace_s or site.grace_s or GRACE_S, minutes * 60 // 4)
        arguments.append(f"--save-after={minutes * 60 - grace_s}")
    return arguments + ["--outlives"] * spec.outlives


def _task(task: int | None) -> list[str]:
    return [] if task is None else ["-t", str(task + 1)]


def _user() -> str:
    from jobs.store import submitter

    return submitter.user()


def _known() -> Path:
    """The folder of what was submitted: files named by numbers, with the job's folder in them."""
    return home() / "gridengine"


def _remember(name: str, text: str) -> None:
    _known().mkdir(mode=0o700, exist_ok=True)
    atomic.write_private(_known() / name, text)


def _folder(external: str) -> Path | None:
    file = _known() / external
    return Path(file.read_text(encoding="utf-8")) if file.is_file() else None


def _call(
    line: Sequence[str],
    limit: float = _ASK_S,
    *,
    text: str = "",
    environment: Mapping[str, str] | None = None,
) -> str:
    """Return the output of one of Grid Engine's commands.

    Raises:
        LauncherError: it is missing, or fails; NoAnswer: no answer within `limit` seconds.
    """
    try:
        done = subprocess.run(
            line, input=text, capture_output=True, text=True, errors="replace", timeout=limit, check=False,
            env={**os.environ, **(environment or {})},
        )  # fmt: skip
    except FileNotFoundError:
        raise LauncherError(
            f"{line[0]} was not found: this is not a host of Grid Engine.",
            cure="Log in to one, or source its settings.sh.",
        ) from None
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"Grid Engine did not answer `{line[0]}` within {limit:.0f} s.") from None
    if done.returncode != 0:
        said = " ".join((done.stderr + " " + done.stdout).split()) or f"exit code {done.returncode}"
        raise LauncherError(f"`{line[0]}` failed: {said}")
    return done.stdout
