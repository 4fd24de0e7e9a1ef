"""How long a training takes that is to be submitted, and whether its time limit can hold that.

An earlier run of the same configuration says it best, then a profile. TensorFlow is not imported: what needs
it is simulated in a process of its own, which may take a few seconds.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobs.requests.submitting import PreparedJobs, SubmissionRequest
    from jobs.spec import JobSpec
    from trainer.config import RunConfig

# Of a time limit that is proposed, over what is predicted.
_ROOM = 1.1


@dataclass(frozen=True)
class Predicted:
    """How long each task of the main job takes.

    Attributes:
        seconds: of the epochs to come, over all starts; None: not known.
        epochs: to come.
        source: what says so; where the seconds are not known, why, and how to know them.
        limit_s: seconds that a start may take; None: no limit is known.
        starts: that this takes, each saved before the limit; None: not known.
        tasks: of the job; each takes as long.
    """

    seconds: float | None
    epochs: int
    source: str
    limit_s: int | None
    starts: int | None
    tasks: int = 1

    @property
    def said(self) -> str:
        """For people."""
        if self.seconds is None:
            return f"Predicted time: not known: {self.source}"
        return (
            f"Predicted time: {_words(self.seconds)} for {self.epochs:,} epoch(s){self._each} ({self.source})"
        )

    @property
    def warning(self) -> str | None:
        """What to do where a start cannot hold it; None: it can, or nothing is known."""
        if self.seconds is None or self.limit_s is None or self.starts is None or self.starts == 1:
            return None
        hours = math.ceil(_ROOM * self.seconds / 3600)
        return (
            f"{_words(self.seconds)} are predicted, and the time limit is {_words(self.limit_s)}: the job "
            f"will save and be requeued by itself about {self.starts - 1:,} time(s). For fewer starts: "
            f"--time {hours}h, or more ranks."
        )

    @property
    def _each(self) -> str:
        return f", each of {self.tasks:,} tasks" if self.tasks > 1 else ""

    def tree(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {**dataclasses.asdict(self), "said": self.said, "warning": self.warning}


def predicted(request: SubmissionRequest, prepared: PreparedJobs) -> Predicted | None:
    """Return how long each task of the main job takes; None where it is no training. Never raises.

    Args:
        request: what is asked for.
        prepared: its jobs.
    """
    from trainer.errors import CingulumError, as_text

    main = next((spec for spec in prepared.chain if spec.kind in ("train", "crossval")), None)
    if main is None:
        return None
    try:
        return _predicted(request, prepared, main)
    except CingulumError as error:
        why = as_text(error).removeprefix("error: ")
    except Exception as error:  # a submission must not fail because its time cannot be told
        why = f"{type(error).__name__}: {error}"
    return Predicted(None, prepared.run.config.train.epochs, why, None, None)


def _predicted(request: SubmissionRequest, prepared: PreparedJobs, main: JobSpec) -> Predicted:
    from trainer.run_folder.record import RunFolder
    from trainer.telemetry import earlier_runs

    config = _of_a_task(prepared.run.config, main, request.folds)
    done = 0 if main.is_array else earlier_runs.epochs_done(RunFolder(config.folder))
    epochs = max(0, config.train.epochs - done)
    wants = main.resources
    ranks = wants.nodes * wants.ranks_per_node
    processes = earlier_runs.Processes(ranks, wants.nodes, wants.gpus_per_node > 0)
    pace = earlier_runs.pace(config, processes)
    if pace is not None:
        each_s = pace.epoch_s
        source = f"{pace.run}: {_words(each_s)} per epoch, median of {pace.epochs}"
    else:
        each_s, source = _by_profile(request, prepared, config, wants.nodes, wants.ranks_per_node)
    limit_s, saved_s = _limit(prepared, main)
    seconds = epochs * each_s
    starts = None if saved_s is None else max(1, math.ceil(seconds / saved_s))
    if config.train.early_stopping is not None:
        source += "; it may stop earlier"
    return Predicted(seconds, epochs, source, limit_s, starts, len(main.tasks))


def _of_a_task(config: RunConfig, main: JobSpec, folds: int | None) -> RunConfig:
    """The configuration of a run of a cross-validation, but for its name and fold."""
    if main.kind == "train":
        return config
    split = config.data.split.model_copy(update={"folds": folds or config.data.split.folds})
    return config.model_copy(update={"data": config.data.model_copy(update={"split": split})})


def _by_profile(
    request: SubmissionRequest, prepared: PreparedJobs, config: RunConfig, nodes: int, each: int
) -> tuple[float, str]:
    """Seconds of an epoch by a profile, and what says so.

    Raises:
        InputError: there is no profile, or it does not tell.
    """
    from trainer.errors import ConfigError

    path = request.profile or getattr(config.train.strategy, "profile", None)
    ranks = nodes * each
    nothing = f"no run of this configuration on {ranks} rank(s) of {nodes} host(s) is in {config.runs}"
    simulate = f"cingulum simulate CONFIG --ranks {ranks} --cluster NAME"
    if path is None:
        raise ConfigError(f"{nothing}; give a profile (--profile FILE), or see `{simulate}`")
    from trainer.forecast import expecting
    from trainer.planning.profile import Profile
    from trainer.planning.simulation import cluster as clusters

    name = request.cluster or prepared.site.cluster
    links = None if name is None else clusters.load(name)
    try:
        each_s = expecting.epoch_s(config, Profile.read(Path(path)), links, nodes=nodes, each=each)
    except ConfigError as error:
        raise ConfigError(f"{nothing}, and {error.message}; see `{simulate} --profile {path}`") from None
    how = "by" if config.train.strategy.name == "data" else "simulated on"
    return each_s, f"{path}: {_words(each_s)} per epoch, {how} {'its links' if links is None else name}"


def _limit(prepared: PreparedJobs, main: JobSpec) -> tuple[int | None, float | None]:
    """Seconds that a start may take, and after which it saves; None: no limit is known."""
    from jobs.schedulers import registry
    from jobs.spec import GRACE_S

    wants, site = main.resources, prepared.site.of(main.kind)
    is_limited = registry.is_scheduler(prepared.launcher)
    minutes = wants.minutes or (site.minutes if is_limited else None)
    if minutes is None:
        return None, None
    grace_s = main.grace_s or (site.grace_s if is_limited else None) or GRACE_S
    return 60 * minutes, 60 * minutes - min(grace_s, 60 * minutes // 4)


def _words(seconds: float) -> str:
    """Such as `41 s`, `12 min`, `3.2 h` or `4.5 d`."""
    for unit, scale in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds:.3g} s"
