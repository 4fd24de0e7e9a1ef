"""Processes that are timed in turn, and stand still while others are."""

import sys
import time
from pathlib import Path

import pytest

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
        pytest.raises(WorldError, match="first failed"),
    ):
        running.hear([first, last], 20, "done")
