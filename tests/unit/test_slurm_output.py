"""What a real Slurm printed is understood: arrays, ranges, signals, requeued jobs, odd names."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.schedulers.base import TaskState
from jobs.schedulers.slurm import output

ANSWERS = Path(__file__).parent / "slurm_answers"
MINE = "8d1b85eb36644d88"


def answer(name: str) -> str:
    return (ANSWERS / name).read_text()


@pytest.fixture(scope="module")
def queue() -> output.Jobs:
    return output.queued(answer("squeue.txt"))


@pytest.fixture(scope="module")
def accounts() -> output.Jobs:
    return output.accounted(answer("sacct.txt"))


def test_a_job_on_three_hosts_is_read_whole(queue):
    assert queue["12"] == {
        0: TaskState(0, "COMPLETED", 0, hosts=("n1", "n2", "n3"), started=1795280218.0, ended=1795280272.0)
    }


def test_tasks_of_an_array_are_told_one_by_one_also_those_that_wait_as_a_range(queue):
    tasks = queue["22"]
    assert sorted(tasks) == [0, 1, 2, 3, 4, 5, 6]
    assert [tasks[k].state for k in (0, 1, 2, 4, 6)] == ["RUNNING", "FAILED", "FAILED", "PENDING", "PENDING"]
    assert tasks[4].reason == "JobArrayTaskLimit"
    assert tasks[4].hosts == () and tasks[4].started is None


def test_a_long_list_of_waiting_tasks_is_not_cut(queue):
    assert len(queue["24"]) == 21 and 80 in queue["24"]


def test_exit_codes_are_those_of_a_shell(queue, accounts):
    for jobs, job in ((queue, "22"), (accounts, "22")):
        assert jobs[job][1].exit_code == 3
        assert jobs[job][2].exit_code == 128 + 9
        assert jobs[job][0].exit_code is None  # it runs


def test_the_time_when_a_running_job_must_end_is_not_taken_for_its_end(queue):
    assert queue["25"][0].ended is None
    assert queue["25"][0].started == 1795280337.0


def test_the_time_when_a_waiting_job_may_start_is_not_taken_for_its_start(queue):
    assert queue["23"][0].started is queue["29"][0].started is None


def test_a_job_that_was_cancelled_has_no_exit_code_and_says_by_whom(queue, accounts):
    assert queue["31"][0].state == accounts["31"][0].state == "CANCELLED"
    assert queue["31"][0].exit_code is accounts["31"][0].exit_code is None
    assert accounts["31"][0].reason == "by user 0"


def test_names_that_look_like_lines_of_squeue_say_nothing_of_other_jobs(queue, accounts):
    assert "17" not in queue and "17" not in accounts
    assert "30" not in queue  # its comment is not ours, and holds what separates fields


def test_of_a_requeued_job_the_newest_start_counts(accounts):
    assert accounts["2"][0] == TaskState(
        0, "COMPLETED", 0, hosts=("n2", "n3"), restarts=1, started=1795279471.0, ended=1795279491.0
    )
    assert accounts["1"][1].state == "FAILED" and accounts["1"][1].restarts == 1


def test_the_queue_counts_how_often_a_job_was_started_again():
    (told,) = output.queued("7|N/A|PENDING|0|2|N/A|N/A|n1|BeginTime|(null)|\n")["7"].values()
    assert (told.state, told.restarts, told.reason, told.hosts) == ("PENDING", 2, "BeginTime", ())


def test_a_submission_is_found_again_by_its_token():
    assert output.with_comment(answer("squeue.txt"), MINE) == "16"
    assert output.submitted_with(answer("sacct-submit-lines.txt"), MINE) == "16"
    assert output.with_comment(answer("squeue.txt"), "f" * 16) is None
    assert output.submitted_with(answer("sacct-submit-lines.txt"), "f" * 16) is None


def test_a_token_within_another_text_is_not_the_token():
    longer = f"5|sbatch --parsable --comment=cingulum:{MINE}0 job.sbatch\n"
    elsewhere = f"6|sbatch --parsable -J --comment=cingulum:{MINE} job.sbatch\n"
    assert output.submitted_with(longer + elsewhere, MINE) is None


def test_a_job_that_another_cluster_of_a_federation_runs_is_not_taken_for_cancelled():
    assert output.queued("7|N/A|REVOKED|0|0|5|5||None|(null)|\n") == {}
    assert output.accounted("7|REVOKED|0:0|5|5|None assigned|None\n") == {}


def test_exhausted_memory_is_no_signal_125():
    (told,) = output.accounted("7|OUT_OF_MEMORY|0:125|5|6|n1|None\n")["7"].values()
    assert (told.state, told.exit_code) == ("OUT_OF_MEMORY", None)
    (told,) = output.queued("7|N/A|OUT_OF_MEMORY|125|0|5|6|n1|OutOfMemory|(null)|\n")["7"].values()
    assert (told.state, told.exit_code) == ("OUT_OF_MEMORY", None)


def test_an_array_is_told_from_a_job_also_where_only_its_first_task_is_left():
    only_first = "7|0|RUNNING|0|0|5|NONE|n1|None|(null)|\n8|N/A|RUNNING|0|0|5|NONE|n1|None|(null)|\n"
    assert output.arrays(only_first) == {"7"}


OF_SLURM = {
    "PENDING": "PENDING RESV_DEL_HOLD",
    "REQUEUED": "REQUEUED REQUEUE_FED REQUEUE_HOLD SPECIAL_EXIT EXPEDITING",
    "SUSPENDED": "SUSPENDED STOPPED",
    "CONFIGURING": "CONFIGURING POWER_UP_NODE",
    "RUNNING": "RUNNING RESIZING SIGNALING UPDATE_DB SOMETHING_NEW",
    "COMPLETING": "COMPLETING STAGE_OUT",
    "CANCELLED": "CANCELLED CANCELLED+",
    "FAILED": "FAILED LAUNCH_FAILED RECONFIG_FAIL",
}
AS_THEY_ARE = "BOOT_FAIL COMPLETED DEADLINE NODE_FAIL OUT_OF_MEMORY PREEMPTED TIMEOUT"


@pytest.mark.parametrize(
    ("given", "state"),
    [(given, ours) for ours, all_of_them in OF_SLURM.items() for given in all_of_them.split()]
    + [(given, given) for given in AS_THEY_ARE.split()],
)
def test_every_state_of_slurm_becomes_one_of_ours(given, state):
    assert output.state_named(given) == state


@pytest.mark.parametrize(
    ("text", "tasks"),
    [
        ("N/A", (0,)),
        ("7", (7,)),
        ("[3-7%2]", (3, 4, 5, 6, 7)),
        ("0-10:5,12", (0, 5, 10, 12)),
        ("1,3,5,...", (1, 3, 5)),
    ],
)
def test_ranges_of_tasks(text, tasks):
    assert output.task_numbers(text) == tasks


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", ()),
        ("n1", ("n1",)),
        ("n[1-3,5]", ("n1", "n2", "n3", "n5")),
        ("login,gpu[08-10]-ib", ("login", "gpu08-ib", "gpu09-ib", "gpu10-ib")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
        ("n[1-2,1", ("n1", "n2", "n1")),  # cut to the width of its column
        ("n[1-", ()),
    ],
)
def test_short_forms_of_host_names(text, hosts):
    assert output.host_names(text) == hosts


@pytest.mark.parametrize("text", ["", "\n", "slurm_load_jobs error\n", "x|" * 10, "|" * 10 + "\n"])
def test_what_is_no_answer_names_no_job(text):
    assert output.queued(text) == output.accounted(text) == {}
