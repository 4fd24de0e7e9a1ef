"""The options of a submission: those of the command line, the API's schema and the form are made of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from jobs import quantities
from jobs.schedulers import registry

Text = Annotated[str, Field(max_length=1000)]
MOST = 1_000_000
MOST_NAMES = 100


@dataclass(frozen=True)
class FormField:
    """How people meet an option.

    Attributes:
        option: on the command line; empty: `--` and its name.
        metavar: of its value there; empty: its type.
        label: in the form.
        hint: in its empty field.
        choices: pairs of value and text, where the form offers some of what is possible.
        is_rare: the form has it under "More".
    """

    label: str
    hint: str = ""
    option: str = ""
    metavar: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    is_rare: bool = True


def _often(label: str, hint: str = "") -> FormField:
    return FormField(label, hint, is_rare=False)


class SubmissionOptions(BaseModel):
    """The options of a submission; None, or empty: what the site or the run says."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    launcher: Annotated[
        Literal[registry.names()],  # type: ignore[valid-type]
        Field(description="What starts the ranks."),
        _often("launcher"),
    ] = registry.names()[0]
    site: Annotated[
        Text | None, Field(description="Site profile, by name or as a file."), _often("site", "here")
    ] = None
    nodes: Annotated[int, Field(ge=1, le=MOST, description="Hosts."), _often("nodes")] = 1
    ranks_per_node: Annotated[
        int | None,
        Field(ge=1, le=MOST, description="Ranks on each host; default: one per GPU, else 1."),
        _often("ranks per node", "one per GPU, else 1"),
    ] = None
    gpus_per_node: Annotated[
        int | None,
        Field(ge=0, le=1000, description="GPUs on each host; 0: on the CPU; default: the site's, else 0."),
        _often("GPUs per node", "the site's"),
    ] = None
    cpus_per_rank: Annotated[
        int | None,
        Field(ge=1, le=MOST, description="Cores of each rank; default: the site's, else 1."),
        _often("cores per rank", "the site's"),
    ] = None
    memory: Annotated[
        Text | None, Field(description="Memory on each host, such as 16G."), _often("memory per node", "16G")
    ] = None
    time: Annotated[
        Text | None,
        Field(description="Longest time to run: 90 (minutes), 12:00:00, 12h."),
        _often("time", "12h"),
    ] = None
    kind: Annotated[
        Text | None,
        Field(description="train, crossval, evaluate or report; default: train, with --folds crossval."),
        FormField(
            "kind",
            choices=(
                ("", "train, or crossval with folds"),
                *((one, one) for one in ("train", "crossval", "evaluate", "report")),
            ),
        ),
    ] = None
    folds: Annotated[
        int | None,
        Field(ge=2, le=1000, description="An array with a task per fold and seed."),
        FormField("folds"),
    ] = None
    seeds: Annotated[
        int, Field(ge=1, le=1000, description="With --folds: networks per fold."), FormField("seeds")
    ] = 1
    at_once: Annotated[
        int | None,
        Field(ge=1, le=MOST, description="Tasks that may run side by side; default: all."),
        FormField("tasks at once", "all"),
    ] = None
    then: Annotated[
        Text | None,
        Field(description="Jobs that follow: evaluate,report."),
        FormField("then", "evaluate,report"),
    ] = None
    after: Annotated[
        tuple[Text, ...],
        Field(max_length=MOST_NAMES, description="Start when this job has completed; may be repeated."),
        FormField("after", "ids of jobs, with spaces", metavar="ID"),
    ] = ()
    source: Annotated[
        Text | None,
        Field(description="Import these images first, into data.shards."),
        FormField("import first", "folder of images", option="--import", metavar="SOURCE"),
    ] = None
    import_options: Annotated[
        Text | None,
        Field(description="Options of that import: '--label diagnosis --size 96'."),
        FormField("options of the import", "--label diagnosis --size 96"),
    ] = None
    import_tasks: Annotated[
        int | None,
        Field(
            ge=2,
            le=10_000,
            description="Prepare its images in an array of so many tasks, before one job packs them.",
        ),
        FormField("tasks that prepare images", "none"),
    ] = None
    name: Annotated[
        Text | None,
        Field(description="Name of the job; default: that of the run."),
        FormField("name of the job", "that of the run"),
    ] = None
    share: Annotated[
        tuple[Text, ...] | None,
        Field(
            max_length=MOST_NAMES,
            description="Let this Unix group look at the jobs, in a store that you share; may be repeated.  "
            "[default: the site's]",
        ),
        FormField("share with groups", "the site's", metavar="GROUP"),
    ] = None
    image: Annotated[Text | None, Field(description="Container image."), FormField("image")] = None
    profile: Annotated[
        Text | None,
        Field(
            description="Predict the time by this file of `cingulum profile`, where no earlier run tells it."
        ),
        FormField("profile, for the time", "profile.json", metavar="FILE"),
    ] = None
    cluster: Annotated[
        Text | None,
        Field(description="With --profile: cluster file that has the links; default: the site's."),
        FormField("cluster, for the time", "the site's"),
    ] = None
    requeues: Annotated[
        int,
        Field(ge=0, le=MOST, description="Starts after failures; those after preemption do not count."),
        FormField("starts after failures"),
    ] = 3
    grace_s: Annotated[
        int | None,
        Field(
            ge=1,
            le=65535,
            description="Seconds before the time limit in which the job saves; default: the site's, else "
            "120.",
        ),
        FormField("seconds to save in", "the site's, else 120", option="--grace"),
    ] = None
    shrink: Annotated[
        bool,
        Field(description="Start again on the hosts that are left."),
        FormField("go on with fewer hosts"),
    ] = False
    least_nodes: Annotated[
        int | None,
        Field(ge=1, le=MOST, description="With --shrink: fewest hosts to start on; default: 1."),
        FormField("fewest hosts"),
    ] = None

    @property
    def memory_mib(self) -> int | None:
        """Memory on each host, in MiB.

        Raises:
            JobError: it is no amount of memory.
        """
        return None if self.memory is None else quantities.mebibytes(self.memory)

    @property
    def minutes(self) -> int | None:
        """Longest time to run.

        Raises:
            JobError: it is no time.
        """
        return None if self.time is None else quantities.minutes(self.time)

    @property
    def fewest_nodes(self) -> int | None:
        """Hosts that are enough where the job may shrink; None: it may not."""
        return (self.least_nodes or 1) if self.shrink else None
