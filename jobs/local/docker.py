"""Jobs in a Docker container on this host: mpirun inside it, and an attendant outside (`attended`).

The container sees the folder to run in, `binds`, the folder of the job's failures and, without being able to
change them, the folders of `readonly` at the paths that they have outside, and nothing else of the host's
files. It runs as the calling user. Several hosts: docs/how-to/run-in-docker.md.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from jobs.local import attended_files, processes
from jobs.local.attended import Attended, attended_launch
from jobs.programs import ask
from jobs.schedulers import registry
from jobs.schedulers.base import Launch
from jobs.sites import Site
from jobs.spec import JobSpec
from jobs.supervisor import record
from trainer.errors import JobError, LauncherError

VERSION_LABEL = "org.opencontainers.image.version"
# A daemon answers in milliseconds; one that is busy removing images may take seconds.
ANSWER_S = 60.0
# docs.docker.com: [host/]path[:tag][@digest]. Above all, it is no option.
_IMAGE = re.compile(r"[A-Za-z0-9][\w./:@-]*", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# NCCL and Open MPI put their buffers there, tens of MiB per rank; Docker's default is 64 MiB in all.
_SHARED_MEMORY_MIB_PER_RANK = 256


class Docker(Attended):
    """Starts a job with `docker run`.

    Args:
        program: the client; default: `$CINGULUM_DOCKER`, else `docker`.
        user: user, group and further groups of the container, by number; default: those of this process.
    """

    name = "docker"

    def __init__(
        self, program: str | None = None, user: tuple[int, int, Sequence[int]] | None = None
    ) -> None:
        self._program = program or os.environ.get("CINGULUM_DOCKER") or "docker"
        self._user = user or (os.getuid(), os.getgid(), os.getgroups())

    def plan(self, spec: JobSpec, site: Site, folder: Path, token: str) -> Launch:
        """Return one attached `docker run` per task: it forwards signals and ends with the task's exit code.

        Raises:
            JobError: several hosts are asked for, or a path cannot be mounted.
        """
        if spec.parallel and spec.resources.nodes > 1:
            raise JobError(
                f"nodes: {spec.resources.nodes} is more than the docker launcher's one host.",
                cure=f"Use --launcher {' or '.join(registry.schedulers())} or mpirun, or start containers "
                "yourself: docs/how-to/run-in-docker.md.",
            )
        added = {**site.environment, **spec.environment}
        commands = [
            self._command(spec, site, added, folder, token, number) for number in range(len(spec.tasks))
        ]
        return attended_launch(spec, token, commands, environment=added, at_once=1)

    def preflight(self, spec: JobSpec, site: Site) -> None:
        """Check that Docker answers, and that the image with this version of cingulum and the folders exist.

        Raises:
            LauncherError: Docker is missing or does not answer.
            JobError: there is no such image or folder, or the image holds another version.
        """
        self._ask("version", "--format", "{{.Server.Version}}")
        image = image_of(spec)
        try:
            labels = self._ask("image", "inspect", "--format", "{{json .Config.Labels}}", "--", image)
        except LauncherError as error:
            raise JobError(
                f"There is no image {image!r} here ({error.message})",
                cure=f"Build it in a checkout: docker build -f docker/Dockerfile -t {image} .",
            ) from error
        theirs = (json.loads(labels) or {}).get(VERSION_LABEL)
        ours = version("cingulum")
        if theirs != ours:
            raise JobError(
                f"Image {image!r} holds cingulum {theirs or '(no version label)'}, and this is {ours}.",
                cure=f"Build it anew: docker build -f docker/Dockerfile -t {image} .",
            )
        for path in (spec.folder, *spec.binds, *spec.readonly):
            if not os.path.exists(path):  # noqa: PTH110 (False, no error, where we may not look)
                raise JobError(f"{path}: is not there, so a container cannot see it.")

    def _command(
        self, spec: JobSpec, site: Site, environment: dict[str, str], folder: Path, token: str, number: int
    ) -> list[str]:
        task = spec.tasks[number]
        resources = spec.resources
        ranks = resources.ranks_per_node if spec.parallel else 1
        user, group, groups = self._user
        line = [self._program, "run"]
        # By its name, a container is found and removed whatever became of those who started it.
        line += ["--rm", f"--name=cingulum-{token}-{number}"]
        # The image that was looked at, or none: another one of its name may be in a registry.
        line += ["--pull=never"]
        # Attached, the client hands every signal on: SIGUSR2 reaches mpirun, and by it the ranks. The init
        # process of the container does so too, and reaps what they leave.
        line += ["--init", "--sig-proxy=true"]
        line += [f"--user={user}:{group}", *(f"--group-add={other}" for other in groups if other != group)]
        line += ["--cap-drop=ALL", "--security-opt=no-new-privileges"]
        # The host's interfaces and names, as without a container: messages name the host, and nothing is
        # translated between ranks and shared storage, trackers or a database.
        line += ["--network=host"]
        # Memory that ranks share is the container's own, so that what killed ranks leave vanishes with it.
        line += ["--ipc=private", f"--shm-size={_SHARED_MEMORY_MIB_PER_RANK * (ranks + 1)}m"]
        if resources.memory_mib is not None:
            line += [f"--memory={resources.memory_mib}m", f"--memory-swap={resources.memory_mib}m"]
        if resources.gpus_per_node:
            line += [f"--gpus={resources.gpus_per_node}"]
        line += [f"--workdir={spec.folder}"]
        written = dict.fromkeys((spec.folder, *spec.binds))
        line += [f"--mount={mount(path)}" for path in written if path not in spec.readonly]
        line += [f"--mount={mount(path, readonly=True)}" for path in dict.fromkeys(spec.readonly)]
        # Each start has a folder of its own in it, which is made before the start.
        failures = record.Record(folder, number if spec.is_array else None, 1).of_ranks.parent
        line += [f"--mount={mount(str(failures))}"]
        # Names only: the client takes the values from its environment, where other users cannot read them.
        # The mark lets the attendant find the container's processes; with the count it tells a start of a job
        # from the one before.
        named = (*sorted(environment), processes.MARK, attended_files.RESTARTS, attended_files.FAILURES)
        line += [f"--env={name}" for name in named]
        if user == 0:
            line += ["--env=OMPI_ALLOW_RUN_AS_ROOT=1", "--env=OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"]
        line += [*site.container_options, image_of(spec)]
        if spec.parallel:
            line += ["mpirun", "-np", str(ranks), "--oversubscribe", "--bind-to", "none"]
        # The program of this host lies elsewhere in the image.
        first = "cingulum" if Path(task[0]).name == "cingulum" else task[0]
        return [*line, first, *task[1:]]

    def _ask(self, *arguments: str) -> str:
        return ask(
            [self._program, *arguments],
            seconds=ANSWER_S,
            cure="`docker info` shows whether its daemon runs and you may use it (group `docker`); where "
            "there is no Docker, use --launcher mpirun.",
        )


def image_of(spec: JobSpec) -> str:
    """Return the image that the job names, else the one that the how-to builds.

    Raises:
        JobError: no name of an image.
    """
    image = spec.image
    if image is None:
        image = "cingulum:gpu" if spec.resources.gpus_per_node else "cingulum"
    if not _IMAGE.fullmatch(image):
        raise JobError(f"image: {image!r} is not the name of an image.", cure="Such as cingulum:0.1.0.")
    return image


def mount(path: str, *, readonly: bool = False) -> str:
    """Return the value of `docker run --mount` that mounts a folder of the host at its own path.

    It is a line of comma-separated values: a comma or a quote in a path is quoted.

    Raises:
        JobError: the path is not absolute, or no such line can hold it.
    """
    if not path.startswith("/") or _CONTROL.search(path):
        raise JobError(f"{path!r} cannot be shown to a container.", cure="Name an absolute path of one line.")
    text = io.StringIO()
    fields = ["type=bind", f"source={path}", f"target={path}", *(["readonly"] if readonly else [])]
    csv.writer(text, lineterminator="").writerow(fields)
    return text.getvalue()
