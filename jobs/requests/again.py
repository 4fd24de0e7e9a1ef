"""What a job was submitted with, to be submitted again with changes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from jobs.job import Job
from jobs.sites import HERE
from trainer.config import yaml_reader
from trainer.errors import CingulumError, JobError

# Where `checks.load` keeps configurations.
_KEPT = re.compile(r".*\.submitted-[0-9]+/[^/]+\.yaml")


def asked(job: Job) -> dict[str, Any]:
    """Return the configuration of a job as text, and its options by the names of `SubmissionOptions`.

    Raises:
        JobError: it is no training, or its configuration is gone.
    """
    spec = job.spec
    kept = next((word for word in spec.tasks[0] if _KEPT.fullmatch(word)), None)
    if spec.kind not in ("train", "crossval") or kept is None:
        raise JobError(
            f"Job {job.label} is of kind {spec.kind}: only trainings are submitted again with changes.",
            cure="Submit the training that it belongs to, with the jobs that follow it.",
        )
    text = yaml_reader.read_text(Path(spec.folder, kept), error=JobError, cure="Give another configuration.")
    wants = spec.resources
    options = {
        "config": text,
        "launcher": job.launcher,
        "site": None if job.site == HERE.name else job.site,
        "nodes": wants.nodes,
        "ranks_per_node": wants.ranks_per_node,
        "gpus_per_node": wants.gpus_per_node,
        "cpus_per_rank": wants.cpus_per_rank,
        "memory": None if wants.memory_mib is None else f"{wants.memory_mib}M",
        "time": None if wants.minutes is None else str(wants.minutes),
        "grace_s": spec.grace_s,
        "requeues": spec.requeues,
        "shrink": spec.shrink,
        "least_nodes": wants.least_nodes if spec.shrink else None,
        "image": spec.image,
    }
    if spec.kind == "crossval":
        words = spec.tasks[0]
        options["folds"] = int(words[words.index("--folds") + 1])
        options["seeds"] = int(words[words.index("--seeds") + 1])
        options["at_once"] = spec.at_once
    return options


NAME = "configuration"


@contextmanager
def as_file(text: str) -> Iterator[Path]:
    """Open a private file with this text, for as long as it is needed; errors name it `configuration`."""
    with TemporaryDirectory(prefix="cingulum-") as folder:
        path = Path(folder) / NAME
        path.write_text(text, encoding="utf-8")
        try:
            yield path
        except CingulumError as error:
            error.message = error.message.replace(str(path), NAME)
            error.cure = error.cure and error.cure.replace(str(path), NAME)
            error.path = None if error.path == path else error.path
            raise
