"""What `cingulum submit` makes of a configuration."""

from __future__ import annotations

import dataclasses

import pytest
from wording import fails_with

from jobs.requests import chains
from jobs.spec import JobSpec, Resources
from trainer.errors import JobError

WANTED = chains.Wanted(
    config="runs/.submitted/mine.yaml",
    run="runs/mine",
    shards="shards/mine",
    first_seed=7,
    program=("/venv/bin/cingulum",),
    name="mine",
    job=JobSpec(
        name="",
        kind="train",
        tasks=(("cingulum",),),
        folder="/work",
        resources=Resources(
            nodes=3, least_nodes=2, ranks_per_node=4, gpus_per_node=4, cpus_per_rank=8, minutes=60
        ),
        shrink=True,
    ),
)


def chain(**changes: object) -> list[JobSpec]:
    return chains.chain(dataclasses.replace(WANTED, **changes))  # type: ignore[arg-type]


def test_a_configuration_alone_is_one_training_that_goes_on_where_it_was():
    (job,) = chain()
    assert job.tasks == (("/venv/bin/cingulum", "train", "runs/.submitted/mine.yaml", "--resume"),)
    assert (job.name, job.kind, job.parallel) == ("mine", "train", True)
    assert job.resources == WANTED.job.resources


def test_folds_and_seeds_are_an_array_with_a_task_for_each_pair():
    (job,) = chain(kind="crossval", folds=3, seeds=2, at_once=4)
    assert len(job.tasks) == 6 and job.at_once == 4
    words = [task[-4:] for task in job.tasks]
    assert words[0] == ("--fold", "0", "--seed", "7")
    assert words[5] == ("--fold", "2", "--seed", "8")
    assert len(set(job.tasks)) == 6
    assert all(task[3:7] == ("--folds", "3", "--seeds", "2") for task in job.tasks)


def test_a_chain_imports_trains_evaluates_and_reports():
    jobs = chain(source="my-bids", import_options=("--size", "96"), then=("evaluate", "report"))
    assert [job.kind for job in jobs] == ["import", "train", "evaluate", "report"]
    assert [job.name for job in jobs] == ["mine-import", "mine", "mine-evaluate", "mine-report"]
    assert [job.parallel for job in jobs] == [False, True, True, False]
    assert jobs[0].tasks[0][1:] == ("import", "--workers=32", "--size", "96", "my-bids", "shards/mine")
    assert jobs[2].tasks[0][1:] == ("evaluate", "runs/mine")
    assert jobs[3].tasks[0][1:] == ("report", "runs/mine")


def test_every_job_of_a_chain_asks_for_what_it_can_use():
    jobs = chain(source="my-bids", then=("evaluate", "report"))
    asked = [(j.resources.nodes, j.resources.ranks_per_node, j.resources.gpus_per_node) for j in jobs]
    assert asked == [(1, 1, 0), (3, 4, 4), (1, 4, 4), (1, 1, 0)]
    assert jobs[0].resources.cpus_per_rank == 32  # its workers have the cores of the ranks
    assert all(j.resources.minutes == 60 for j in jobs)


def test_an_import_may_have_its_images_prepared_by_an_array():
    jobs = chain(source="my-bids", import_options=("--size", "96"), import_tasks=3)
    assert [job.name for job in jobs] == ["mine-import-parts", "mine-import", "mine"]
    assert [job.kind for job in jobs] == ["import", "import", "train"]
    (whole,) = jobs[1].tasks
    assert [task[2] for task in jobs[0].tasks] == ["--part=1/3", "--part=2/3", "--part=3/3"]
    assert {(*task[:2], *task[3:]) for task in jobs[0].tasks} == {whole}
    assert jobs[0].resources == jobs[1].resources


def test_the_report_of_folds_pools_them():
    jobs = chain(kind="crossval", folds=3, seeds=2, at_once=4, then=("report",))
    assert [job.kind for job in jobs] == ["crossval", "report"]
    assert jobs[1].tasks == ((*jobs[0].tasks[0][:7],),)
    assert not jobs[1].is_array and jobs[1].at_once is None and not jobs[1].parallel


def test_the_workers_of_an_import_may_be_chosen():
    jobs = chain(source="my-bids", import_options=("--workers=3",))
    assert jobs[0].tasks[0].count("--workers=3") == 1
    assert not any(word.startswith("--workers=32") for word in jobs[0].tasks[0])


def test_a_path_that_begins_with_a_dash_is_no_option():
    jobs = chain(source="--overwrite", shards="-s", then=("evaluate",), run="-r/mine")
    assert jobs[0].tasks[0][-2:] == ("./--overwrite", "./-s")
    assert jobs[2].tasks[0][-1] == "./-r/mine"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kind": "crossval"}, "how many folds"),
        ({"folds": 3}, "are for a cross-validation"),
        ({"seeds": 2}, "are for a cross-validation"),
        ({"at_once": 2}, "are for a cross-validation"),
        ({"kind": "crossval", "folds": 3, "then": ("evaluate",)}, "evaluated as they end"),
        ({"kind": "report", "then": ("report",)}, "cannot follow"),
        ({"kind": "report", "then": ("evaluate",)}, "cannot follow"),
        ({"import_options": ("--size", "96")}, "nothing is imported"),
        ({"import_tasks": 3}, "nothing is imported"),
        ({"kind": "evaluate", "source": "my-bids"}, "does not read images"),
    ],
)
def test_what_does_not_fit_together_is_refused(changes, said):
    with pytest.raises(JobError, match=said):
        chain(**changes)


def test_mistyped_words_are_answered_with_a_suggestion():
    with fails_with(JobError):
        chains.following("evalute,report")
    with fails_with(JobError):
        chains.kind_of("croosval", folds=None)
    with fails_with(JobError):
        chains.following("report,report")
    assert chains.following(" evaluate , report ") == ("evaluate", "report")
    assert chains.following(None) == ()
    assert [chains.kind_of(None, folds=folds) for folds in (None, 5)] == ["train", "crossval"]
