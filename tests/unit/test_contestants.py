"""Processes that are timed in turn, and stand still while others are."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from wording import fails_with

from cingulum.bench import processes as bench_processes
from cingulum.bench.processes import Contestant, Process, Running
from trainer.bench.spreads import ratios, spread
from trainer.errors import WorldError

COUNTS = """
import os, sys
print(f"ready [{os.getpid()}]" if "tells" in sys.argv else "ready")
for number, line in enumerate(sys.stdin):
    if "fails" in sys.argv and number:
        sys.exit("no memory left")
    print(f"done {number}", flush=True)
"""


def contestant(*options, processes=2, **settings):
    argv = (sys.executable, "-uc", COUNTS, *options)
    wanted = [Process("ours", f"rank {number}", argv) for number in range(processes)]
    return Contestant("ours", wanted, **settings)


def states(one):
    """The state of each of its processes, as the kernel names it; T: stopped."""
    pids = [process.pid for process in one._started.values()]
    return [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids]


def stand_still(one):
    """A signal takes its time."""
    began = time.monotonic()
    while states(one) != ["T", "T"]:
        assert time.monotonic() - began < 20


def test_those_that_tell_their_numbers_stand_still_between_blocks():
    with contestant("tells") as one:
        one.warm_up()
        stand_still(one)
        assert one.block() == [0, 0]
        stand_still(one)
        assert one.block() == [1, 1]
        pids = one._pids
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.parametrize(("options", "settings"), [((), {}), (("tells",), {"stands_still": False})])
def test_others_do_not(options, settings):
    with contestant(*options, **settings) as one:
        one.warm_up()
        assert "T" not in states(one)
        assert one.block() == [0, 0]


def test_one_that_fails_is_named_and_all_end_at_once():
    began = time.monotonic()
    with (
        pytest.raises(WorldError, match=r"ours: rank \d failed \(exit code \d+\):\nno memory left"),
        contestant("tells", "fails") as one,
    ):
        one.warm_up()
        one.block()
        one.block()
    assert all(process.poll() is not None for process in one._started.values())
    assert time.monotonic() - began < 20


def test_a_spread_holds_the_median_and_its_interval():
    found = spread("speed", ratios([2.0, 4.0, 9.0], [1.0, 1.0, 3.0]))
    assert (found["speed"], found["speed_min"], found["speed_max"]) == (3, 2, 4)
    assert (found["speed_low"], found["speed_high"]) == (2, 4)
    wide = [float(number) for number in range(101)]
    many = spread("speed", wide)
    # The median of 101 equally spaced numbers has a standard error of 5.
    assert 37 < many["speed_low"] < 43 < many["speed"] < 57 < many["speed_high"] < 63


def test_a_process_may_end_before_others_have_said_their_word():
    first = Process("ours", "first", [sys.executable, "-c", "print('done 1')"])
    # It says its word once the other one has ended, and its end is known.
    last = Process("ours", "last", [sys.executable, "-uc", "input(); print('done 2'); input()"])
    with Running([first, last]) as running:
        running._started[first].wait()
        running._readers[0].join()
        running.say("go")
        assert running.hear([first, last], 20, "done") == {first: " 1\n", last: " 2\n"}


def test_a_process_that_fails_after_its_word_is_named_while_others_are_waited_for():
    first = Process("ours", "first", [sys.executable, "-c", "print('done 1'); exit('no memory left')"])
    last = Process("ours", "last", [sys.executable, "-uc", "input()"])
    with (
        Running([first, last]) as running,
        fails_with(WorldError),
    ):
        running.hear([first, last], 20, "done")


def watched(body: str, limit_s: float) -> Process:
    """A process whose watch has seen `body` begin."""
    lines = [
        "import sys, time",
        "from trainer.bench.blocks import ProgressWatch",
        "def stuck():",
        "    time.sleep(60)",
        f"with ProgressWatch({limit_s}, tick_s=0.01) as watch:",
        *(f"    {line}" for line in body.splitlines()),
    ]
    return Process("ours", "part 1", [sys.executable, "-uc", "\n".join(lines)])


def test_a_rank_that_gets_nowhere_is_named_with_what_it_does_and_where():
    process = watched('watch.beat("training step 3 of a block")\nstuck()', 0.2)
    said = (
        r"ours: part 1 failed \(exit code 1\):\nerror: rank 0 @ .*: no progress for \d+ s "
        r"while training step 3 of a block, in stuck \("
    )
    with pytest.raises(WorldError, match=said), Running([process]) as running:
        running.hear([process], 60, "done")


def test_a_rank_that_is_stopped_or_rests_is_not_taken_for_one_that_hangs():
    process = watched('print("ready")\nsys.stdin.readline()\nwatch.rest()\ntime.sleep(1)\nprint("done")', 0.5)
    with Running([process]) as running:
        running.hear([process], 60, "ready")
        pid = running._started[process].pid
        os.kill(pid, signal.SIGSTOP)
        time.sleep(1)
        os.kill(pid, signal.SIGCONT)
        running.say("go")
        running.hear([process], 60, "done")


def test_a_process_that_closes_its_output_and_stays_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(bench_processes, "_END_S", 0.2)
    line = [sys.executable, "-c", "import os, time; os.close(1); time.sleep(60)"]
    process = Process("ours", "part 1", line)
    with (
        fails_with(WorldError),
        Running([process]) as running,
    ):
        running.hear([process], 60, "ready")


def test_who_is_late_is_named_with_what_it_wrote():
    says = [sys.executable, "-uc", "import sys; sys.stderr.write('waits for a disk'); print('up'); input()"]
    late = Process("ours", "part 1", says)
    with (
        fails_with(WorldError),
        Running([late]) as running,
    ):
        running.hear([late], 60, "up")
        running.hear([late], 0, "ready")


HANGS_AFTER_FORK = """
import os, sys, threading, time
from cingulum.bench.processes import Process, Running
os.register_at_fork(after_in_child=lambda: time.sleep(600))
process = Process("ours", "part 1", [sys.executable, "-uc", "print('ready'); input()"])
with Running([process]) as running:
    running.hear([process], 60, "ready")
"""


def test_what_a_fork_of_this_program_would_wait_for_hinders_no_start():
    """Between fork and exec a lock may stay held for ever that another thread held, such as of a reader."""
    subprocess.run([sys.executable, "-c", HANGS_AFTER_FORK], timeout=60, check=True)


DIES = """
import os, sys
from cingulum.bench.processes import Process, Running
process = Process("ours", "part 1", [sys.executable, "-uc", "print('ready'); input()"])
with Running([process]) as running:
    running.hear([process], 60, "ready")
    print(running._started[process].pid, flush=True)
    os.kill(os.getpid(), 9)
"""


def test_processes_end_with_a_benchmark_that_is_killed():
    done = subprocess.run(
        [sys.executable, "-c", DIES], stdout=subprocess.PIPE, text=True, timeout=60, check=False
    )
    began = time.monotonic()
    while Path(f"/proc/{int(done.stdout)}").exists():
        assert time.monotonic() - began < 20
        time.sleep(0.01)


def test_a_program_that_is_not_there_is_named_at_the_start():
    with (
        pytest.raises(FileNotFoundError, match="no-such-program"),
        Running([Process("a", "b", ["no-such-program"])]),
    ):
        pass
