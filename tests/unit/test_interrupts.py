"""Ctrl-C at a moment when Python cannot raise it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cingulum.cli import app

# The interrupt comes while the process is forked: Python meets it in `logging`'s handler, and drops it.
AT_A_FORK = """
import functools, logging, os, signal, subprocess
os.register_at_fork(before=functools.partial(os.kill, os.getpid(), signal.SIGINT))
subprocess.run(["true"], preexec_fn=int)
"""
IN_A_DESTRUCTOR = """
import os, signal
class Ends:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass
Ends()
"""
PROGRAM = """
import sys, time
from cingulum.cli import app
{begin}
try:
    {strike}
    time.sleep(2)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("strike", [AT_A_FORK, IN_A_DESTRUCTOR], ids=["at a fork", "in a destructor"])
def test_an_interrupt_that_python_drops_comes_again(strike):
    def ran(begin: str) -> subprocess.CompletedProcess[str]:
        program = PROGRAM.format(begin=begin, strike=strike.strip().replace("\n", "\n    "))
        return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)

    mended = ran("app.raise_again()")
    assert mended.stdout == "interrupted\n" and mended.stderr == "", mended
    dropped = ran("")  # else this test shows nothing
    assert dropped.stdout == "" and "KeyboardInterrupt" in dropped.stderr, dropped


def test_a_signal_that_ends_the_work_comes_again_too():
    program = """
import functools, logging, os, signal, subprocess, time
from cingulum.cli import app
from trainer.errors import Stopped
from trainer.ranks.stopping import ended_by_signals
app.raise_again()
os.register_at_fork(before=functools.partial(os.kill, os.getpid(), signal.SIGTERM))
try:
    with ended_by_signals(Stopped("as asked")):
        subprocess.run(["true"], preexec_fn=int)
        time.sleep(2)
except Stopped as stopped:
    print(stopped.message)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (ran.stdout, ran.stderr) == ("as asked\n", ""), ran


def test_other_errors_that_python_drops_are_shown_as_ever(monkeypatch):
    shown = []
    monkeypatch.setattr(sys, "unraisablehook", shown.append)
    app.raise_again()

    class Ends:
        def __del__(self):
            raise ValueError("of the test")

    Ends()
    assert [one.exc_type for one in shown] == [ValueError]


def test_the_command_line_raises_dropped_interrupts_again(monkeypatch):
    from cingulum.cli import app
    from trainer import quiet

    monkeypatch.setattr(quiet, "_whole", quiet._whole)  # which `main` changes
    before = sys.unraisablehook
    monkeypatch.setattr(sys, "unraisablehook", before)
    monkeypatch.setattr(sys, "argv", ["cingulum", "--version"])
    with pytest.raises(SystemExit):
        app.main()
    assert sys.unraisablehook is not before
