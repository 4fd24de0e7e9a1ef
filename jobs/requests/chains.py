"""Jobs of one `cingulum submit` (one, an array, or a chain) and the resources of each: pure functions."""

from __future__ import annotations

import difflib
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from jobs.requests.submission_options import SubmissionOptions
from jobs.sites import Site
from jobs.spec import JobSpec, Resources
from trainer.errors import JobError

KINDS = ("train", "crossval", "evaluate", "report")
FOLLOWING = ("evaluate", "report")


@dataclass(frozen=True)
class Wanted:
    """The jobs requested.

    Attributes:
        config: path of the configuration that the jobs read.
        run: run folder that it leads to; of a cross-validation the folder of its runs.
        shards: folder of its shard set.
        first_seed: train.seed.
        program: words that start `cingulum` where the job runs.
        name: of the main job; others append what they do.
        kind: of the main job, one of KINDS.
        folds, seeds: of a cross-validation.
        then: what follows, of FOLLOWING.
        source: images to import first; None: nothing is imported.
        import_options: further words for `cingulum import`.
        import_tasks: of an array that prepares its images before; None: there is none.
        at_once: runs of a cross-validation that may train side by side; None: all.
        job: terms of the main job; its name, kind and tasks are replaced.
        sides: what jobs of other kinds are given, by kind; without: what the main job has.
    """

    config: str
    run: str
    shards: str
    first_seed: int
    program: tuple[str, ...]
    name: str
    job: JobSpec
    kind: str = "train"
    folds: int | None = None
    seeds: int = 1
    at_once: int | None = None
    then: tuple[str, ...] = ()
    source: str | None = None
    import_options: tuple[str, ...] = field(default=())
    import_tasks: int | None = None
    sides: Mapping[str, Side] = field(default_factory=dict)


def chain(request: Wanted) -> list[JobSpec]:
    """Return the jobs, in order; each but the first is to be submitted with `after` the one before it.

    Raises:
        JobError: what is asked for does not fit together.
    """
    _check(request)
    steps = [] if request.source is None else [_importing(request)]
    if steps and request.import_tasks is not None:
        steps.insert(0, _preparing(steps[0], request.import_tasks))
    steps.append(_main(request))
    steps += [_following(request, what) for what in request.then]
    return steps


def kind_of(kind: str | None, *, folds: int | None) -> str:
    """Return the kind of the main job: as requested, else "crossval" where there are folds, else "train".

    Raises:
        JobError: there is no such kind, or no folds are given for a cross-validation.
    """
    if kind is None:
        return "train" if folds is None else "crossval"
    if kind not in KINDS:
        raise JobError(
            f"--kind {kind!r}: is not known.{_hint(kind, KINDS)}", cure=f"There are: {', '.join(KINDS)}."
        )
    return kind


def following(text: str | None) -> tuple[str, ...]:
    """Return the kinds of job that `--then evaluate,report` requests.

    Raises:
        JobError: an unknown word, or one twice.
    """
    words = tuple(word.strip() for word in text.split(",")) if text else ()
    for word in words:
        if word not in FOLLOWING:
            raise JobError(
                f"--then {word!r}: is not known.{_hint(word, FOLLOWING)}",
                cure="For example: --then evaluate,report",
            )
    if len(set(words)) < len(words):
        raise JobError(f"--then {text}: names a job twice.", cure="For example: --then evaluate,report")
    return words


def _hint(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def _check(request: Wanted) -> None:
    if request.kind == "crossval" and request.folds is None:
        raise JobError("A cross-validation needs to know how many folds.", cure="Add --folds 5.")
    if request.kind != "crossval" and (request.folds is not None or request.seeds > 1 or request.at_once):
        raise JobError("--folds, --seeds and --at-once are for a cross-validation.", cure="Add --folds 5.")
    if request.kind == "crossval" and "evaluate" in request.then:
        raise JobError(
            "The folds of a cross-validation are evaluated as they end.", cure="--then report pools them."
        )
    if request.kind in request.then or (request.kind == "report" and request.then):
        raise JobError(f"--then {','.join(request.then)}: cannot follow a job of kind {request.kind}.")
    of_imports = {"--import-options": request.import_options, "--import-tasks": request.import_tasks}
    for option, value in of_imports.items():
        if request.source is None and value:
            raise JobError(f"{option}: nothing is imported.", cure="Add --import SOURCE.")
    if request.source is not None and request.kind not in ("train", "crossval"):
        raise JobError(f"--import: a job of kind {request.kind} does not read images.")


def _main(request: Wanted) -> JobSpec:
    if request.kind != "crossval":
        return _step(request, request.kind, request.name)
    shared = (*request.program, *_pooling(request))
    tasks = tuple(
        (*shared, "--fold", str(fold), "--seed", str(request.first_seed + seed))
        for seed in range(request.seeds)
        for fold in range(request.folds or 0)
    )
    return replace(request.job, name=request.name, kind="crossval", tasks=tasks, at_once=request.at_once)


def _following(request: Wanted, what: str) -> JobSpec:
    name = f"{request.name}-{what}"
    if request.kind != "crossval":
        return _step(request, what, name)
    # All folds are finished by then: the command pools them and writes the report.
    return replace(
        request.job,
        name=name,
        kind="report",
        tasks=((*request.program, *_pooling(request)),),
        parallel=False,
        resources=_given(request, "report", _one_process(request.job.resources)),
    )


def _pooling(request: Wanted) -> tuple[str, ...]:
    """Return the arguments of the whole cross-validation, as `cingulum` takes them."""
    return ("crossval", request.config, "--folds", str(request.folds), "--seeds", str(request.seeds))


def _step(request: Wanted, kind: str, name: str) -> JobSpec:
    """Return a job that is not an array: train, evaluate or report."""
    if kind == "train":
        words: tuple[str, ...] = ("train", request.config, "--resume")
        return replace(request.job, name=name, kind=kind, tasks=((*request.program, *words),))
    task = (*request.program, kind, _no_option(request.run))
    if kind == "report":
        alone = _given(request, kind, _one_process(request.job.resources))
        return replace(request.job, name=name, kind=kind, tasks=(task,), parallel=False, resources=alone)
    # One host is enough to look at the test split.
    resources = _given(request, kind, _one_host(request.job.resources))
    return replace(request.job, name=name, kind=kind, tasks=(task,), resources=resources, shrink=False)


def _importing(request: Wanted) -> JobSpec:
    """Return an import job: one process with all cores of a host's ranks, which starts its own workers."""
    words = ("import", *request.import_options, _no_option(request.source or ""), _no_option(request.shards))
    ranks = request.job.resources
    cores = ranks.ranks_per_node * ranks.cpus_per_rank
    resources = _given(request, "import", replace(_one_process(ranks), cpus_per_rank=cores))
    workers = (
        ()
        if any(word.split("=")[0] == "--workers" for word in request.import_options)
        else (f"--workers={resources.cpus_per_rank}",)
    )
    return replace(
        request.job,
        name=f"{request.name}-import",
        kind="import",
        tasks=((*request.program, words[0], *workers, *words[1:]),),
        parallel=False,
        resources=resources,
        shrink=False,
    )


def _preparing(whole: JobSpec, count: int) -> JobSpec:
    """Return an array whose tasks prepare the images of an import, each a part."""
    (words,) = whole.tasks
    after = words.index("import") + 1
    tasks = tuple((*words[:after], f"--part={n}/{count}", *words[after:]) for n in range(1, count + 1))
    return replace(whole, name=f"{whole.name}-parts", tasks=tasks)


def _given(request: Wanted, kind: str, resources: Resources) -> Resources:
    """Return these resources, derived from the main job, with what the site gives this kind of job."""
    side = request.sides.get(kind)
    if side is None or kind == request.kind:
        return resources
    gpus = resources.gpus_per_node if side.gpus_per_node is None else side.gpus_per_node
    # Of ranks on GPUs there is one for each.
    ranks = gpus if kind == "evaluate" and gpus else resources.ranks_per_node
    return replace(
        resources,
        ranks_per_node=ranks,
        gpus_per_node=gpus,
        cpus_per_rank=side.cpus_per_rank or resources.cpus_per_rank,
        memory_mib=side.memory_mib,
        minutes=side.minutes,
    )


def _one_host(resources: Resources) -> Resources:
    return replace(resources, nodes=1, least_nodes=None)


def _one_process(resources: Resources) -> Resources:
    return replace(_one_host(resources), ranks_per_node=1, gpus_per_node=0)


def _no_option(path: str) -> str:
    """Return a path that no command takes for an option."""
    return posixpath.join(".", path) if path.startswith("-") else path


@dataclass(frozen=True)
class Side:
    """Resources of a job before or after the main one.

    Attributes:
        cpus_per_rank, gpus_per_node: None: as it follows from the main job.
        memory_mib, minutes: None: the site's default.
    """

    cpus_per_rank: int | None
    gpus_per_node: int | None
    memory_mib: int | None
    minutes: int | None


def main(requested: SubmissionOptions, site: Site, kind: str) -> Resources:
    """Return the resources of the main job: the request counts first, then the profile for its kind, then
    the profile for all kinds.

    Raises:
        JobError: impossible numbers.
    """
    here = site.of(kind)
    gpus = _first(requested.gpus_per_node, here.gpus_per_node, 0)
    return Resources(
        nodes=requested.nodes,
        least_nodes=requested.fewest_nodes,
        ranks_per_node=requested.ranks_per_node or gpus or 1,
        gpus_per_node=gpus,
        cpus_per_rank=_first(requested.cpus_per_rank, here.cpus_per_rank, 1),
        memory_mib=requested.memory_mib or here.memory_mib,
        minutes=requested.minutes,
    )


def side(requested: SubmissionOptions, site: Site, kind: str) -> Side:
    """Return the resources of a job before or after the main one: the profile for its kind counts first,
    also before the request.

    `--time 36h` is for the training; where the profile gives imports four hours, they are to have four.
    """
    own = site.kinds.get(kind)  # type: ignore[call-overload]
    keys = own.model_fields_set if own is not None else frozenset()
    return Side(
        cpus_per_rank=own.cpus_per_rank if "cpus_per_rank" in keys else None,
        gpus_per_node=own.gpus_per_node if "gpus_per_node" in keys else None,
        memory_mib=own.memory_mib if "memory" in keys else requested.memory_mib or site.memory_mib,
        minutes=own.minutes if "minutes" in keys else requested.minutes,
    )


def _first(*values: int | None) -> int:
    return next(value for value in values if value is not None)
