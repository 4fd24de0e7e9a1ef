"""Jobs whose ranks each run in an Apptainer container, started by the MPI of the host (hybrid launch).

Hosts, ssh, an allocation of Slurm's and signals are mpirun's affair, as without containers; what differs is
what each rank runs (`jobs.containers`), and that image and host must fit together (`jobs.containers`).
A rank runs as the calling user, as Apptainer runs everything. It sees the job's folder, `binds`, `readonly`,
and of the host /tmp, /dev and what the site's apptainer.conf binds; the home folder only where one of these
lies in it.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from jobs import containers
from jobs.local.mpirun import Mpirun, find
from jobs.schedulers.base import Launch
from jobs.sites import Site
from jobs.spec import Arguments, JobSpec
from trainer.errors import JobError


class Apptainer(Mpirun):
    """Starts a job with the host's mpirun and one `apptainer exec` per rank.

    Args:
        program: default: `$CINGULUM_APPTAINER`, else apptainer or singularity, whichever is on PATH.
    """

    name = "apptainer"

    def __init__(self, program: str | None = None) -> None:
        self._program = program or containers.find_program()

    def plan(self, spec: JobSpec, site: Site, folder: Path, token: str) -> Launch:
        """Return the launch of the mpirun launcher, with each rank in a container.

        Raises:
            JobError: no image is named, or a path is not absolute.
        """
        return super().plan(self._inside(spec, site), site, folder, token)

    def preflight(self, spec: JobSpec, site: Site) -> None:
        """Check Apptainer, the image and the folders, and that the image's Open MPI matches the host's.

        Raises:
            LauncherError: Apptainer is missing or too old, or the two Open MPIs do not go together.
            JobError: an image or a folder is not there.
        """
        image = containers.check_image(spec.image)
        for path in (spec.folder, *spec.binds, *spec.readonly):
            if not os.path.exists(path):  # noqa: PTH110 (False, no error, where we may not look)
                raise JobError(f"{path}: is not there, so a container cannot see it.")
        containers.runtime(self._program)
        if spec.parallel:
            containers.check_mpi(site.mpirun or find(), self._program, image)
        super().preflight(self._inside(spec, site), site)

    def _inside(self, spec: JobSpec, site: Site) -> JobSpec:
        image = containers.named_image(spec.image)
        tasks: list[Arguments] = [
            containers.wrap(
                # The program of this host lies elsewhere in the image.
                ("cingulum" if Path(task[0]).name == "cingulum" else task[0], *task[1:]),
                image,
                [spec.folder, *spec.binds],
                spec.resources.gpus_per_node,
                spec.environment,
                readonly=spec.readonly,
                folder=spec.folder,
                options=site.container_options,
                program=self._program,
            )
            for task in spec.tasks
        ]
        return dataclasses.replace(spec, tasks=tuple(tasks))
