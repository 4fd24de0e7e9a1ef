"""The body of a batch script, run by bash with stand-ins for Slurm. tests/cluster have the real one."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from batch_bench import Bench, wait_until


@pytest.fixture
def bench(tmp_path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize(("code", "requeued"), [(0, 0), (2, 0), (75, 1), (1, 1), (137, 1)])
def test_what_an_exit_code_leads_to(bench, code, requeued):
    assert bench.run(f"exit {code}") == code
    assert bench.requeued == requeued
    assert len(bench.failures) == (1 if code in (1, 137) else 0)
    assert not list(bench.folder.glob("attempt*"))


@pytest.mark.parametrize(
    ("code", "requeues", "state"),
    [(0, 1, "COMPLETED"), (2, 1, "FAILED"), (1, 0, "FAILED"), (75, 1, None), (1, 1, None)],
)
def test_the_folder_tells_how_a_task_ended_and_nothing_of_one_that_goes_on(bench, code, requeues, state):
    ending = bench.folder / "state.json"
    ending.write_text("of a start before")
    assert bench.run(f"exit {code}", requeues=requeues) == code
    if state is None:
        assert not ending.exists()
        return
    (task,) = json.loads(ending.read_text())["tasks"]
    assert (task["task"], task["state"], task["exit_code"], task["restarts"]) == (0, state, code, 0)
    assert abs(task["ended"] - time.time()) < 60


LOST = """ORTE has lost communication with a remote daemon.

  HNP daemon   : [[39242,0],0] on node n1
  Remote daemon: [[39242,0],2] on node n3
"""


@pytest.mark.parametrize(
    ("said", "where", "why"),
    [
        (
            "epoch 1\n[rank 1 @ n2] error: the disk is full\n[rank 0 @ n1] error: x",
            "rank 1 @ n2",
            "the disk is full",
        ),
        ("[rank 1 @ n2] KeyError: 'x'", "rank 1 @ n2", "KeyError: 'x'"),
        (
            "[rank 0 @ n1] no progress for 9 s while reading the next batch; ending all ranks",
            "rank 0 @ n1",
            "no progress for 9 s while reading the next batch; ending all ranks",
        ),
        (
            "mpirun noticed that process rank 1 with PID 0 on node n2 exited on signal 9 (Killed).",
            "rank 1 @ n2",
            "was killed by signal 9 (SIGKILL)",
        ),
        (
            "rank 1 as launched is server 0 @ n2.site\nrank 2 as launched is server 1 @ n3\n"
            "mpirun noticed that process rank 1 with PID 0 on node n2 exited on signal 9 (Killed).",
            "server 0 @ n2",
            "was killed by signal 9 (SIGKILL)",
        ),
        (
            "[server 0 @ n2] error: did not get a message",
            "server 0 @ n2",
            "did not get a message",
        ),
        (LOST, "n3", "the connection to it is lost"),
        ("srun: error: n2: task 1: Killed", "rank 1 @ n2", "Killed"),
        (
            "rank 2 as launched is server 0 @ n3\nsrun: error: n3: task 2: Killed",
            "server 0 @ n3",
            "Killed",
        ),
        ("srun: error: Node failure on n3", "n3", "the connection to it is lost"),
        ("error: the learning rate is too high", "", "the learning rate is too high"),
        ("all was well", "", "ended with exit code 3"),
    ],
)
def test_who_is_at_fault_is_read_from_this_start_alone(bench, said, where, why):
    (bench.folder / "out.log").write_text("[rank 9 @ n9] error: of an earlier start\n")
    assert bench.run(f"echo {shlex.quote(said)}; exit 3") == 3
    assert bench.failures == [["3", where, why]]


def test_a_host_that_slurm_calls_down_is_at_fault_whatever_was_said(bench):
    bench.program("sinfo", "echo 'n1 allocated'; echo 'n3 down*'; echo 'n2 idle*'")
    bench.run("echo '[rank 0 @ n1] error: x'; exit 1", shrink=True)
    assert bench.failures == [["1", "n2,n3", "down, reports Slurm: powered off, or its link is cut"]]


@pytest.mark.parametrize("shrink", [False, True])
def test_a_silent_host_is_left_out_when_that_was_asked_for(tmp_path, shrink):
    bench = Bench(tmp_path)
    bench.slurm_says("JobState=RUNNING PreemptTime=None ExcNodeList=n9")
    said = "[rank 2 @ n3] error: does not answer rank 0 @ n1: it is stopped"
    bench.run(f"echo '{said}'; exit 1", shrink=shrink)
    asked = "update JobId=7 ExcNodeList=n9,n3 NumNodes=2 NumTasks=2 NumCPUs=2"
    assert bench.calls.read_text().splitlines() == ["requeue 7", *([asked] if shrink else [])]


def test_failures_are_counted_and_the_job_ends_after_those_allowed(bench):
    assert [bench.run("exit 1", requeues=2) for _ in range(3)] == [1, 1, 1]
    assert bench.requeued == 2 and len(bench.failures) == 3
    log = (bench.folder / "out.log").read_text()
    assert "failed 3 times: not started again" in log
    # By hand it is tried once more.
    assert bench.run("exit 0", requeues=2) == 0


@pytest.mark.parametrize("state", ["COMPLETING", "CANCELLED", "PENDING"])
def test_a_job_that_slurm_has_ended_is_not_brought_back(bench, state):
    bench.slurm_says(f"JobState={state} PreemptTime=None")
    assert bench.run("exit 75") == 75
    assert bench.requeued == 0


@pytest.mark.parametrize(("at", "failed"), [("2026-01-01T00:00:09", 0), ("2025-12-31T23:59:59", 1)])
def test_being_preempted_in_this_start_is_no_failure(bench, at, failed):
    bench.slurm_says(f"JobState=RUNNING PreemptTime={at} StartTime=2026-01-01T00:00:00")
    assert bench.run("exit 1") == 1
    assert bench.requeued == 1 and len(bench.failures) == failed


@pytest.mark.parametrize("number", [signal.SIGUSR2, signal.SIGTERM])
def test_a_signal_is_passed_on_and_the_script_waits_for_what_it_started(bench, number):
    assert bench.signal(number, "sleep 0.2; exit 75") == 75
    assert bench.requeued == 1 and bench.failures == []
    assert not list(bench.folder.glob("attempt*"))


def test_told_to_save_before_there_are_ranks_it_is_started_again(bench):
    assert bench.run("touch ran", setup="kill -USR2 $$") == 75
    assert bench.requeued == 1 and bench.failures == []
    assert not (bench.folder / "ran").exists() and not list(bench.folder.glob("attempt*"))


@pytest.mark.parametrize(("preempted", "failed"), [("None", 1), ("2026-01-01T00:00:09", 0)])
def test_what_cannot_save_at_its_time_limit_is_not_started_for_ever(bench, preempted, failed):
    bench.slurm_says(f"JobState=RUNNING PreemptTime={preempted} StartTime=2026-01-01T00:00:00")
    assert [bench.signal(signal.SIGUSR2, "exit 140", requeues=1) for _ in range(2)] == [140, 140]
    assert len(bench.failures) == 2 * failed
    assert bench.requeued == (1 if failed else 2)


@pytest.mark.parametrize("code", [75, 1])
def test_a_job_whose_time_is_over_is_started_again_and_counted_unless_it_saved(bench, code):
    """Slurm itself ends it: TIMEOUT."""
    bench.slurm_says("JobState=COMPLETING Reason=TimeLimit PreemptTime=None")
    # The script asks Slurm while the command saves.
    assert bench.signal(signal.SIGTERM, f"sleep 1; exit {code}") == code
    assert bench.requeued == 1
    bench.slurm_says("JobState=RUNNING PreemptTime=None")
    assert bench.run("exit 0", requeues=0) == (0 if code == 75 else 1)
    why = ["-", "", "had not saved when its time was over"]
    assert bench.failures == ([] if code == 75 else [why])


def test_the_end_of_the_time_that_preemption_leaves_is_no_time_limit(bench):
    bench.slurm_says(
        "JobState=COMPLETING Reason=TimeLimit PreemptTime=2026-01-01T00:00:09 StartTime=2026-01-01T00:00:00"
    )
    assert bench.signal(signal.SIGTERM, "sleep 1; exit 1") == 1
    assert bench.requeued == 0 and not list(bench.folder.glob("attempt*"))


def test_a_host_that_is_lost_each_time_is_counted_though_slurm_requeues_by_itself(bench):
    bench.program("sinfo", "echo 'n3 down*'")
    bench.slurm_says("JobState=PENDING PreemptTime=None")
    assert bench.signal(signal.SIGTERM, "sleep 1; exit 1") == 1
    assert bench.failures == [["-", "n3", "down, reports Slurm: powered off, or its link is cut"]]
    assert bench.requeued == 0
    assert bench.run("touch ran", requeues=0) == 1
    assert not (bench.folder / "ran").exists() and len(bench.failures) == 1
    assert json.loads((bench.folder / "state.json").read_text())["tasks"][0]["state"] == "FAILED"


LOST_BATCH_HOST = "n1\nthe host of the batch script was lost during the start before\n"


@pytest.mark.parametrize("killed_with", [137, 143])
@pytest.mark.parametrize(("ended_with", "failed"), [("75", 0), ("1", 1)])
def test_ranks_that_srun_ends_after_one_has_saved_have_saved_too(bench, ended_with, failed, killed_with):
    said = f"srun: error: n1: task 0: Exited with exit code {ended_with}"
    assert bench.run(f"echo '{said}'; exit {killed_with}") == (killed_with if failed else 75)
    assert bench.requeued == 1 and len(bench.failures) == failed


def test_a_start_that_was_never_ended_counts_as_failed(bench):
    assert bench.run('cp "$PWD/attempt.start-1" "$PWD/seen"') == 0
    assert (bench.folder / "seen").read_text() == LOST_BATCH_HOST
    (bench.folder / "attempt.start-1").write_text(LOST_BATCH_HOST)
    assert bench.run("exit 0") == 0
    assert bench.failures == [["-", *LOST_BATCH_HOST.splitlines()]]
    (bench.folder / "attempt.start-2").write_text(LOST_BATCH_HOST)
    assert bench.run("exit 0", requeues=1) == 1


@pytest.mark.parametrize(("down", "changed"), [("n1", True), ("n2", False), ("", False)])
def test_a_step_on_another_host_does_without_the_host_of_the_script(bench, down, changed):
    """Its stand-in for srun leaves the script behind, as if that host were gone."""
    bench.program("sinfo", f"[ -z '{down}' ] || echo '{down} down*'")
    bench.program(
        "srun",
        'while [ "${1#/}" = "$1" ]; do shift; done\n'
        'echo $$ >"$PWD/witness"; [ -z "$SLURM_CPUS_PER_TASK$SLURM_TRES_PER_TASK" ] || exit; exec "$@"',
    )
    process = bench.start("sleep 20", shrink=True)
    try:
        noted = bench.folder / "witness"
        wait_until(lambda: noted.exists() and noted.read_text().endswith("\n"), "the step")
        step = int(noted.read_text())
        wait_until(lambda: "sigtimedwait" in Path(f"/proc/{step}/wchan").read_text(), "the step to wait")
        bench.slurm_says("JobState=PENDING PreemptTime=None ExcNodeList=(null) Restarts=1")
        process.kill()
        os.kill(step, signal.SIGTERM)
        wait_until(lambda: not Path(f"/proc/{step}").exists() or "Z" in state(step), "the end of the step")
    finally:
        process.kill()
        process.wait()
    asked = "update JobId=7 ExcNodeList=n1 NumNodes=2 NumTasks=2 NumCPUs=2"
    assert bench.calls.read_text().splitlines() == ([asked] if changed else [])


def state(process: int) -> str:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_only_a_job_that_may_shrink_has_such_a_step(bench):
    bench.program("srun", 'touch "$PWD/witness"')
    assert bench.run("sleep 0.2") == 0
    assert not (bench.folder / "witness").exists()


def test_a_host_is_left_out_by_the_name_that_slurm_has_for_it(bench):
    bench.run("echo '[rank 2 @ n3.cluster.local] error: does not answer rank 0 @ n1'; exit 1", shrink=True)
    assert "ExcNodeList=n3 " in bench.calls.read_text()
    assert bench.failures == [["1", "rank 2 @ n3", "does not answer rank 0 @ n1"]]


def test_it_is_not_said_that_a_host_is_left_out_where_slurm_would_not(bench):
    bench.run("echo '[rank 2 @ n3] error: does not answer rank 0 @ n1'; exit 1", shrink=True)
    assert "waits for n3, as Slurm would not change the job" in (bench.folder / "out.log").read_text()


def test_a_task_of_an_array_keeps_to_its_own_name_and_files(bench):
    assert bench.run("exit 1", task=3, requeues=1) == 1
    assert bench.calls.read_text().splitlines() == ["requeue 6_3"]
    assert bench.run("exit 1", task=3, requeues=1) == 1
    assert bench.run('cp "$PWD/attempt-2.start-3" seen', task=2) == 0
    assert len((bench.folder / "failures-3").read_text().splitlines()) == 2
    assert {path.name for path in bench.folder.iterdir()} == {
        *("failures-3", "state-3.json", "state-2.json", "out-3.log", "out-2.log", "seen"),
        *("failures-3.d", "failures-2.d", "supervisor"),
    }
    (task,) = json.loads((bench.folder / "state-3.json").read_text())["tasks"]
    assert (task["task"], task["state"]) == (3, "FAILED")


def test_a_task_that_is_not_in_the_array_is_bad_input(bench):
    assert bench.run("touch ran", task=4) == 2
    assert not (bench.folder / "ran").exists()


def test_a_smaller_job_asks_for_the_cores_of_all_its_ranks(bench):
    said = "[rank 2 @ n3] error: does not answer rank 0 @ n1"
    bench.run(f"echo '{said}'; exit 1", shrink=True, SLURM_CPUS_PER_TASK="8")
    assert "NumNodes=2 NumTasks=2 NumCPUs=16" in bench.calls.read_text()


def test_a_job_does_not_shrink_below_the_least_number_of_hosts(bench):
    bench.program("sinfo", "echo 'n1 down'; echo 'n2 down'")
    bench.run("exit 1", shrink=True, setup="SLURM_JOB_NUM_NODES=2")
    assert bench.calls.read_text().splitlines() == ["requeue 7"]
    assert "0 hosts are left, and 1 are needed" in (bench.folder / "out.log").read_text()
    bench.run("exit 1", shrink=True, requeues=9)  # of three
    assert "NumNodes=1" in bench.calls.read_text()


@pytest.mark.parametrize("shows", [True, False], ids=["refuses", "away"])
def test_a_controller_that_is_away_is_asked_again(bench, shows):
    note = f'echo "$*" >>{shlex.quote(str(bench.calls))}'
    facts = 'if [ "$1" = show ]; then echo "JobId=7 JobState=RUNNING Restarts=0 BatchHost=n1"; exit; fi\n'
    bench.program("scontrol", f"{facts if shows else ''}{note}; exit 1")
    program = (
        "import sys; from jobs.schedulers.slurm.supervisor import ending, main; ending.PAUSE_S = 0.01\n"
        "main.main(sys.argv[1:])"
    )
    words = ["--label", "7", "--folder", str(bench.folder), "--requeues", "1", "--ranks-per-node", "1"]
    environment = {"PATH": f"{bench.programs}:{os.environ['PATH']}", "SLURMD_NODENAME": "n1"}
    line = [sys.executable, "-c", program, *words, "--", "bash", "-c", "exit 75"]
    ran = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert bench.requeued == (10 if shows else 0)
    assert bench.calls.read_text().splitlines().count("show job -o 7") >= (0 if shows else 2)
    assert "by hand: scontrol requeue 7" in ran.stderr and bench.failures == []


LATER = {
    "the next start runs": "JobState=RUNNING Restarts=1 BatchHost=n2",
    "the next start runs on the same host": "JobState=RUNNING Restarts=1 BatchHost=n1",
    "the next start waits": "JobState=PENDING Restarts=1",
    "it runs elsewhere": "JobState=RUNNING Restarts=0 BatchHost=n2",
}


@pytest.mark.parametrize("code", [0, 1, 2, 75, 76, 137])
@pytest.mark.parametrize("later", LATER.values(), ids=LATER.keys())
def test_an_orphan_does_nothing_whatever_its_exit_code(bench, later, code):
    """Its slurmd is gone, and so is its host, by what Slurm says."""
    bench.program("sinfo", "echo 'n1 down*'")
    scontrol = bench.programs / "scontrol"
    now = scontrol.read_text()
    bench.slurm_says(later)
    scontrol.rename(bench.folder.parent / "later")
    bench.program("scontrol", now.partition("\n")[2])
    ending = bench.folder / "state.json"
    assert bench.run(f'echo mine >state.json; mv ../later "{scontrol}"; exit {code}', shrink=True) == code
    assert bench.calls.read_text() == "" and bench.failures == []
    assert ending.read_text() == "mine\n"
    assert (bench.folder / "attempt.start-1").read_text() == LOST_BATCH_HOST


def moves_on(bench: Bench, looks: int) -> None:
    """Slurm tells this start so many times that the job is its own, and then that the next one runs."""
    own, later = (f"JobState=RUNNING Restarts={n} BatchHost=n{n + 1} ExcNodeList=(null)" for n in (0, 1))
    count, calls = bench.folder.parent / "looks", shlex.quote(str(bench.calls))
    bench.program(
        "scontrol",
        f'if [ "$1 $2" = "show job" ]; then echo >>{count}; [ "$(wc -l <{count})" -gt {looks} ] && '
        f'echo "JobId=7 {later}" || echo "JobId=7 {own}"; exit; fi\n[ "$1" = show ] || echo "$*" >>{calls}',
    )


@pytest.mark.parametrize("looks", [2, 3], ids=["before the requeue", "before the update"])
def test_a_successor_that_begins_in_between_is_neither_requeued_nor_changed(bench, looks):
    """Slurm is asked before each act."""
    moves_on(bench, looks)
    bench.run("echo '[rank 2 @ n3] error: does not answer rank 0 @ n1'; exit 1", shrink=True)
    assert bench.calls.read_text().splitlines() == ["requeue 7"][: looks - 2] and len(bench.failures) == 1


def test_an_orphan_that_slurm_ends_notes_no_failure_and_no_lost_host(bench):
    bench.program("sinfo", "echo 'n3 down*'")
    moves_on(bench, 1)
    assert bench.signal(signal.SIGTERM, "sleep 1; exit 1", shrink=True) == 1
    assert bench.failures == [] and bench.calls.read_text() == ""
    assert (bench.folder / "attempt.start-1").read_text() == LOST_BATCH_HOST


def test_an_orphan_that_cannot_start_does_not_say_how_the_job_ended(bench):
    moves_on(bench, 0)
    assert bench.run("exit 0", setup="cd() { return 1; }") == 2
    assert not (bench.folder / "state.json").exists()


def test_a_start_that_comes_after_its_successor_starts_no_ranks(bench):
    bench.slurm_says("JobState=RUNNING Restarts=5 BatchHost=n1")
    assert bench.run("touch ran") == 76
    assert not (bench.folder / "ran").exists() and bench.calls.read_text() == ""


def test_a_start_that_is_fenced_off_is_neither_counted_nor_started_again(bench):
    assert bench.run("exit 76") == 76
    assert bench.failures == [] and bench.calls.read_text() == ""
    assert "another start writes its run folder" in (bench.folder / "out.log").read_text()


def test_what_a_rank_has_left_is_believed_before_what_was_printed(bench):
    record = {"who": "rank 1", "host": "n2.site", "message": "the disk is full\nMake room.", "time": 1.5}
    file = shlex.quote(json.dumps(record))
    assert bench.run(f'echo {file} >"$CINGULUM_FAILURES/a.json"; echo "[rank 0 @ n1] error: x"; exit 1') == 1
    assert bench.failures == [["1", "rank 1 @ n2", "the disk is full"]]
    assert (bench.folder / "failures.d" / "start-1" / "a.json").exists()


def test_the_term_that_answers_a_requeue_does_not_end_what_asks_for_it(bench):
    """Slurm sends it to all processes; what follows the requeue, as leaving a host out, would be lost."""
    show = "JobState=RUNNING Restarts=0 BatchHost=n1 PreemptTime=None ExcNodeList=(null)"
    note = f'echo "$*" >>{shlex.quote(str(bench.calls))}'
    bench.program(
        "scontrol",
        f'if [ "$1" = show ]; then echo "JobId=7 {show}"; exit; fi\nkill $PPID $$; {note}',
    )
    bench.run("echo '[rank 2 @ n3] error: does not answer rank 0 @ n1'; exit 1", shrink=True)
    requeue, update = bench.calls.read_text().splitlines()
    assert requeue == "requeue 7" and update.startswith("update JobId=7 ExcNodeList=n3 ")


def test_what_a_profile_sets_for_its_own_lines_ends_with_them(bench):
    strict = "set -euo pipefail\nIFS=$'\\n\\t'\ntrap 'exit 3' ERR"
    assert bench.run("exit 1", setup=strict) == 1
    assert bench.requeued == 1 and len(bench.failures) == 1


def test_what_is_refused_before_the_start_leaves_its_end_in_the_folder(bench):
    assert bench.run("exit 0", setup="module() { return 1; }; cd() { return 1; }") == 2
    (task,) = json.loads((bench.folder / "state.json").read_text())["tasks"]
    assert (task["state"], task["exit_code"]) == ("FAILED", 2)
    assert bench.requeued == 0 and not list(bench.folder.glob("attempt*"))


READY = "touch ready; while [ ! -e go ]; do sleep 0.01; done; "
GOES_ON = "touch ready; while [ -e ready ]; do sleep 0.01; done"


@pytest.mark.parametrize(
    "command",
    [f"trap 'exit {code}' USR2; {GOES_ON}" for code in (75, 1)] + [f"trap '' USR2; {GOES_ON}"],
    ids=["saves", "fails", "is still saving"],
)
def test_no_preemption_counts_as_a_failure_while_slurm_does_not_answer(bench, command):
    """KILL comes before the answer, as often as it likes."""
    bench.hold_answers()
    counts = []
    for _ in range(3):
        bench.killed_unheard(command, signal.SIGTERM, requeues=9)
        counts.append(len(bench.failures))
    assert bench.run("exit 0", requeues=0) == 0 and [*counts, len(bench.failures)] == [0, 0, 0, 0]


@pytest.mark.parametrize("code", [0, 2, 75, 76])
def test_an_exit_code_is_kept_though_nobody_lives_to_ask_slurm_about_it(bench, code):
    bench.hold_answers()
    bench.killed_unheard(f"{READY} exit {code}")
    assert bench.run("exit 0", requeues=0) == 0 and bench.failures == []
    assert f"start 1 is no failure: it ended with exit code {code}" in (bench.folder / "out.log").read_text()


def test_a_failure_is_kept_with_its_cause_though_nobody_lives_to_ask_slurm_about_it(bench):
    bench.hold_answers()
    bench.killed_unheard(f"{READY} echo '[rank 1 @ n2] error: the disk is full'; exit 3")
    assert bench.run("exit 0", requeues=1) == 0
    assert bench.failures == [["3", "rank 1 @ n2", "the disk is full"]]


def test_a_start_that_saved_before_slurm_said_that_its_time_was_over_is_no_failure(bench):
    bench.hold_answers()
    process = bench.start(f"trap 'touch saved; exit 75' USR2; {GOES_ON}")
    wait_until(lambda: (bench.folder / "ready").exists(), "the command to start")
    bench.silent.touch()
    process.send_signal(signal.SIGTERM)
    settled = bench.folder / "failures.d" / "start-1" / "settled"
    wait_until(lambda: settled.exists() and "75" in settled.read_text(), "the end of the command")
    bench.slurm_says("JobState=COMPLETING Reason=TimeLimit PreemptTime=None")
    bench.silent.unlink()
    assert process.wait(timeout=20) == 75
    bench.slurm_says("JobState=RUNNING PreemptTime=None")
    assert bench.run("exit 0", requeues=0) == 0 and bench.failures == []


@pytest.mark.parametrize(("at", "failed"), [("2026-01-01T00:00:09", 0), ("2025-12-31T23:59:59", 1)])
def test_a_start_that_was_killed_without_a_word_is_no_failure_where_slurm_preempted_it(bench, at, failed):
    process = bench.start(GOES_ON)
    wait_until(lambda: (bench.folder / "ready").exists(), "the command to start")
    process.kill()
    process.wait()
    (bench.folder / "ready").unlink()
    bench.slurm_says(f"JobState=RUNNING PreemptTime={at} StartTime=2026-01-01T00:02:00")
    assert bench.run("exit 0", requeues=1) == 0 and len(bench.failures) == failed


def test_the_end_of_a_job_is_in_its_folder_before_slurm_is_asked_for_names(bench):
    bench.hold_answers(to="*hostnames*")
    bench.killed_unheard(f"{READY} exit 0")
    (task,) = json.loads((bench.folder / "state.json").read_text())["tasks"]
    assert (task["state"], task["exit_code"], task["hosts"]) == ("COMPLETED", 0, [])


def test_an_answer_that_no_pipe_holds_is_read_and_none_is_waited_for_that_others_hold_open(bench):
    """A thousand hosts, and a program that Slurm's command leaves running."""
    bench.program("sinfo", "for n in {1..9000}; do echo n$n idle; done; echo 'n3 down*'; sleep 9 & exit 0")
    assert bench.run("exit 1") == 1
    assert bench.failures == [["1", "n3", "down, reports Slurm: powered off, or its link is cut"]]
