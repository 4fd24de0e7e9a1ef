"""Jobs of one `cingulum submit` (one, an array, or a chain) and the resources of each: pure functions."""

from __future__ import annotations

import difflib
import itertools
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

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
    sides: Mapping[str, Side] = field(default_factory=dict)


def chain(wanted: Wanted) -> list[JobSpec]:
    """Return the jobs, in order; each but the first is to be submitted with `after` the one before it.

    Raises:
        JobError: what is asked for does not fit together.
    """
    _check(wanted)
    steps = [] if wanted.source is None else [_importing(wanted)]
    steps.append(_main(wanted))
    steps += [_following(wanted, what) for what in wanted.then]
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


def run_folders(spec: JobSpec) -> tuple[str, ...]:
    """Return the run folder of each task; empty where a job trains in none, or the folder is not known."""
    if spec.run is None or spec.kind not in ("train", "crossval"):
        return ()
    if spec.kind == "train":
        return (spec.run,) * len(spec.tasks)
    # As `_main` writes them; `trainer.crossval.folds` names the folders.
    chosen = [dict(itertools.pairwise(task)) for task in spec.tasks]
    if not all("--fold" in one and "--seed" in one for one in chosen):
        return ()
    return tuple(posixpath.join(spec.run, f"fold-{one['--fold']}-seed-{one['--seed']}") for one in chosen)


def _hint(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def _check(wanted: Wanted) -> None:
    if wanted.kind == "crossval" and wanted.folds is None:
        raise JobError("A cross-validation needs to know how many folds.", cure="Add --folds 5.")
    if wanted.kind != "crossval" and (wanted.folds is not None or wanted.seeds > 1 or wanted.at_once):
        raise JobError("--folds, --seeds and --at-once are for a cross-validation.", cure="Add --folds 5.")
    if wanted.kind == "crossval" and "evaluate" in wanted.then:
        raise JobError(
            "The folds of a cross-validation are evaluated as they end.", cure="--then report pools them."
        )
    if wanted.kind in wanted.then or (wanted.kind == "report" and wanted.then):
        raise JobError(f"--then {','.join(wanted.then)}: cannot follow a job of kind {wanted.kind}.")
    if wanted.source is None and wanted.import_options:
        raise JobError("--import-options are for an import.", cure="Add --import SOURCE.")
    if wanted.source is not None and wanted.kind not in ("train", "crossval"):
        raise JobError(f"--import: a job of kind {wanted.kind} does not read images.")


def _main(wanted: Wanted) -> JobSpec:
    if wanted.kind != "crossval":
        return _step(wanted, wanted.kind, wanted.name)
    shared = (*wanted.program, *_pooling(wanted))
    tasks = tuple(
        (*shared, "--fold", str(fold), "--seed", str(wanted.first_seed + seed))
        for seed in range(wanted.seeds)
        for fold in range(wanted.folds or 0)
    )
    return replace(wanted.job, name=wanted.name, kind="crossval", tasks=tasks, at_once=wanted.at_once)


def _following(wanted: Wanted, what: str) -> JobSpec:
    name = f"{wanted.name}-{what}"
    if wanted.kind != "crossval":
        return _step(wanted, what, name)
    # All folds are finished by then: the command pools them and writes the report.
    return replace(
        wanted.job,
        name=name,
        kind="report",
        tasks=((*wanted.program, *_pooling(wanted)),),
        parallel=False,
        resources=_given(wanted, "report", _one_process(wanted.job.resources)),
    )


def _pooling(wanted: Wanted) -> tuple[str, ...]:
    """Return the arguments of the whole cross-validation, as `cingulum` takes them."""
    return ("crossval", wanted.config, "--folds", str(wanted.folds), "--seeds", str(wanted.seeds))


def _step(wanted: Wanted, kind: str, name: str) -> JobSpec:
    """Return a job that is not an array: train, evaluate or report."""
    if kind == "train":
        words: tuple[str, ...] = ("train", wanted.config, "--resume")
        return replace(wanted.job, name=name, kind=kind, tasks=((*wanted.program, *words),))
    task = (*wanted.program, kind, _no_option(wanted.run))
    if kind == "report":
        alone = _given(wanted, kind, _one_process(wanted.job.resources))
        return replace(wanted.job, name=name, kind=kind, tasks=(task,), parallel=False, resources=alone)
    # One host is enough to look at the test split.
    resources = _given(wanted, kind, _one_host(wanted.job.resources))
    return replace(wanted.job, name=name, kind=kind, tasks=(task,), resources=resources, shrink=False)


def _importing(wanted: Wanted) -> JobSpec:
    """Return an import job: one process with all cores of a host's ranks, which starts its own workers."""
    words = ("import", *wanted.import_options, _no_option(wanted.source or ""), _no_option(wanted.shards))
    ranks = wanted.job.resources
    cores = ranks.ranks_per_node * ranks.cpus_per_rank
    resources = _given(wanted, "import", replace(_one_process(ranks), cpus_per_rank=cores))
    workers = (
        ()
        if any(word.split("=")[0] == "--workers" for word in wanted.import_options)
        else (f"--workers={resources.cpus_per_rank}",)
    )
    return replace(
        wanted.job,
        name=f"{wanted.name}-import",
        kind="import",
        tasks=((*wanted.program, words[0], *workers, *words[1:]),),
        parallel=False,
        resources=resources,
        shrink=False,
    )


def _given(wanted: Wanted, kind: str, resources: Resources) -> Resources:
    """Return these resources, derived from the main job, with what the site gives this kind of job."""
    side = wanted.sides.get(kind)
    if side is None or kind == wanted.kind:
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
class Asked:
    """The request, in the words of `Resources`; None: not given."""

    nodes: int = 1
    least_nodes: int | None = None
    ranks_per_node: int | None = None
    gpus_per_node: int | None = None
    cpus_per_rank: int | None = None
    memory_mib: int | None = None
    minutes: int | None = None


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


def main(asked: Asked, site: Site, kind: str) -> Resources:
    """Return those of the requested job: the request counts first, then the profile for its kind, then for
    all.

    Raises:
        JobError: impossible numbers.
    """
    here = site.of(kind)
    gpus = _first(asked.gpus_per_node, here.gpus_per_node, 0)
    return Resources(
        nodes=asked.nodes,
        least_nodes=asked.least_nodes,
        ranks_per_node=asked.ranks_per_node or gpus or 1,
        gpus_per_node=gpus,
        cpus_per_rank=_first(asked.cpus_per_rank, here.cpus_per_rank, 1),
        memory_mib=asked.memory_mib or here.memory_mib,
        minutes=asked.minutes,
    )


def side(asked: Asked, site: Site, kind: str) -> Side:
    """Return those of a job before or after it: the profile for its kind counts first, also before the
    request.

    `--time 36h` is for the training; where the profile gives imports four hours, they are to have four.
    """
    own = site.kinds.get(kind)  # type: ignore[call-overload]
    said = own.model_fields_set if own is not None else frozenset()
    return Side(
        cpus_per_rank=own.cpus_per_rank if "cpus_per_rank" in said else None,
        gpus_per_node=own.gpus_per_node if "gpus_per_node" in said else None,
        memory_mib=own.memory_mib if "memory" in said else asked.memory_mib or site.memory_mib,
        minutes=own.minutes if "minutes" in said else asked.minutes,
    )


def _first(*values: int | None) -> int:
    return next(value for value in values if value is not None)
