"""Pages of the list of jobs, and what users did with one."""

from __future__ import annotations

import dataclasses

import pytest

from jobs.home import new_token
from jobs.schedulers.base import TaskState
from jobs.spec import JobSpec
from jobs.store import submitter
from jobs.store.listing import JobQuery
from jobs.store.store import Store

SPEC = JobSpec(name="b", kind="train", tasks=(("cingulum",),), folder="/work")
MINE = JobQuery(user=submitter.user())


@pytest.fixture
def full(store, tmp_path) -> Store:
    """Jobs 1 to 4, called b, A, 50%_c and b; 2 runs on n7, 4 has failed."""
    for number, name in enumerate(("b", "A", "50%_c", "b"), 1):
        spec = dataclasses.replace(SPEC, name=name)
        job = store.add(new_token(), spec, launcher="slurm", site="here", folder=tmp_path)
        store.adopt(job, str(4710 + number))
    store.record([(store.get("4712"), [TaskState(0, "RUNNING", hosts=("n7", "n8"))])])
    store.record([(store.get("4714"), [TaskState(0, "FAILED", 1)])])
    return store


def numbers(store: Store, **wanted: object) -> list[int]:
    return [job.number for job in store.page(dataclasses.replace(MINE, **wanted))[0]]


def test_a_list_is_sorted_by_what_is_asked_for_and_then_by_age(full):
    assert numbers(full) == [4, 3, 2, 1]
    assert numbers(full, descending=False) == [1, 2, 3, 4]
    assert numbers(full, sort="name", descending=False) == [3, 2, 4, 1]
    assert numbers(full, sort="state", descending=False) == [4, 3, 1, 2]


def test_pages_hold_each_job_once_and_say_how_many_there_are(full):
    pages = [dataclasses.replace(MINE, sort="name", offset=offset, limit=3) for offset in (0, 3, 6)]
    found = [full.page(page) for page in pages]
    assert sorted(job.number for jobs, _ in found for job in jobs) == [1, 2, 3, 4]
    assert {total for _, total in found} == {4}


def test_a_search_looks_at_names_ids_kinds_and_hosts_for_the_very_letters(full):
    assert numbers(full, text="a", sort="submitted") == [4, 3, 2, 1]  # `train`
    assert numbers(full, text="N7") == [2]
    assert numbers(full, text="4713") == [3]
    assert numbers(full, text="%_") == [3]
    assert numbers(full, text="50%_C", states=("RUNNING",)) == []


def test_states_and_users_are_filters(full):
    assert numbers(full, states=("RUNNING", "FAILED")) == [4, 2]
    assert full.page(JobQuery(user="somebody else")) == ([], 0)


def test_what_users_did_is_kept_in_order_with_who_and_when(full):
    job = full.get("4712")
    full.act(job, None, "cancel", "me (command line)")
    full.act(job, 0, "requeue", "näme\n")
    found = full.actions("4712")
    assert [(one.task, one.action, one.who) for one in found] == [
        (None, "cancel", "me (command line)"),
        (0, "requeue", "näme\n"),
    ]
    assert found[1].time >= found[0].time > job.submitted
    assert full.actions("4711") == []
