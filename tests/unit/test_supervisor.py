"""What becomes of a start, as a table; what Slurm says; and that any python3 of a cluster can run it."""

from __future__ import annotations

import ast

import pytest

from jobs.schedulers.slurm import launcher
from jobs.schedulers.slurm.supervisor.job_start import JobRecord, JobStart, word_of_slurm
from jobs.schedulers.slurm.supervisor.rank_command import SRUN
from jobs.schedulers.slurm.supervisor.slurm_calls import facts_of
from jobs.supervisor import blame
from jobs.supervisor.blame import Blame
from jobs.supervisor.decisions import is_spent, judge


@pytest.mark.parametrize(
    ("code", "word", "kind"),
    [
        *((0, word, "done") for word in (None, "time", "again", "end", "cancel")),
        *((75, word, "again") for word in (None, "time", "again")),
        *((76, word, "fenced") for word in (None, "time", "again", "end")),
        *((2, word, "unusable") for word in (None, "time", "again")),
        *((code, "cancel", "cancelled") for code in (1, 2, 75, 76, 137)),
        *((code, "end", "ended") for code in (1, 75, 137)),
        *((code, "again", "again") for code in (1, 137, 140)),
        *((code, "time", "late") for code in (1, 137, 140)),
        *((code, None, "failed") for code in (1, 3, 137, 143)),
    ],
)
def test_what_an_exit_code_means_of_a_start_that_was_told_something(code, word, kind):
    assert judge(code, word).kind == kind


@pytest.mark.parametrize(
    ("asked", "preempted", "word"),
    [
        *(("", False, None), ("", True, "again"), ("USR2", False, "time"), ("USR2", True, "again")),
        *(("TERM", False, "again"), ("TERM", True, "again")),
    ],
)
def test_only_an_end_of_time_counts_against_a_start_that_was_told_to_save(asked, preempted, word):
    assert word_of_slurm(asked, preempted=preempted) == word


def test_as_many_starts_may_fail_as_are_allowed():
    assert [is_spent(failures, 2) for failures in range(4)] == [False, False, False, True]


@pytest.mark.parametrize(
    ("facts", "owns", "acts", "changes"),
    [
        (JobRecord("RUNNING", 1, "n1"), True, True, True),
        (JobRecord("RUNNING", 1), True, True, True),
        (JobRecord("COMPLETING", 1, "n1"), True, False, True),
        (JobRecord("RUNNING", 1, "n2"), False, False, False),
        (JobRecord("PENDING", 2), False, False, True),
        (JobRecord("RUNNING", 2, "n1"), False, False, False),
        (JobRecord("RUNNING", 0, "n1"), False, False, False),
        (JobRecord("PENDING", 3), False, False, False),
    ],
)
def test_a_start_does_only_what_slurm_still_means_it_to(facts, owns, acts, changes):
    start = JobStart(1, "n1")
    assert (start.owns(facts), start.may_act(facts), start.may_change_next(facts)) == (owns, acts, changes)


SAID = (
    "JobId=7 JobName=a UserId=u(0) JobState=RUNNING Reason=None Requeue=1 Restarts=2 BatchFlag=1 "
    "StartTime=2026-01-02T00:00:00 PreemptTime={} ExcNodeList=n9 BatchHost=n3 "
    "StdErr=/x Restarts=9 JobState=FAILED"
)


def test_fields_are_read_before_what_users_chose():
    assert facts_of(SAID.format("None")) == JobRecord("RUNNING", 2, "n3", "", False, "n9")


@pytest.mark.parametrize(("at", "preempted"), [("2026-01-02T00:00:09", True), ("2026-01-01T00:00:00", False)])
def test_a_preemption_before_this_start_is_none_of_it(at, preempted):
    found = facts_of(SAID.format(at))
    assert found is not None and found.preempted is preempted


@pytest.mark.parametrize("text", ["", "slurm_load_jobs error: Unable to contact", "JobId=7 JobState=RUNNING"])
def test_what_is_no_answer_is_none(text):
    assert facts_of(text) is None


def test_what_srun_says_of_a_failure_is_read_where_slurm_starts_ranks():
    killed = "srun: error: n3: task 2: Killed\n"
    assert blame.read(killed, 137, hosts=["n3.cluster"], wording=SRUN) == Blame(
        "Killed", "rank 2", "n3.cluster"
    )
    lost = blame.read("srun: error: Node failure on n3\n", 1, wording=SRUN)
    assert lost.lost and lost.host == "n3"
    assert blame.read(killed, 137) == Blame("was killed by signal 9 (SIGKILL)")


def test_every_file_on_a_host_is_for_python_3_6():
    sources = launcher.supervisor_sources()
    assert {"supervisor/__main__.py", "supervisor/jobs/supervisor/blame.py"} < set(sources)
    for name, text in sources.items():
        tree = ast.parse(text, name, feature_version=(3, 6))
        for node in ast.walk(tree):
            found = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not set(found) & {"__future__", "dataclasses"}, name  # of 3.7
            ours = {word for word in found if word.partition(".")[0] in ("cingulum", "jobs", "trainer")}
            assert all(f"supervisor/{word.replace('.', '/')}" in _without_suffix(sources) for word in ours), (
                name
            )


def _without_suffix(sources: dict[str, str]) -> set[str]:
    names = {name.removesuffix(".py") for name in sources}
    return names | {name.removesuffix("/__init__") for name in names}
