"""The watchdog speaks when a rank hangs, and only then."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time

from trainer.ranks.watchdog import Watchdog


def run(body: str) -> tuple[subprocess.CompletedProcess[str], float]:
    program = "import os, time\nfrom trainer.ranks.watchdog import Watchdog\n" + textwrap.dedent(body)
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    return done, time.monotonic() - started


def test_a_rank_that_hangs_says_where_and_ends_the_world():
    done, seconds = run(
        """
        def stuck():
            time.sleep(60)
        with Watchdog(0.5, "rank 1 @ here", lambda: os._exit(7)) as watchdog:
            watchdog.beat("reading the next batch")
            stuck()
        """
    )
    assert done.returncode == 7
    assert done.stderr.startswith("[rank 1 @ here] no progress for ")
    assert "while reading the next batch" in done.stderr
    assert "in stuck" in done.stderr
    assert seconds < 20


def test_a_part_of_a_finished_run_that_hangs_is_no_failure():
    done, _ = run(
        """
        with Watchdog(0.5, "rank 0 @ here", lambda: os._exit(0 if watchdog.kept else 1)) as watchdog:
            watchdog.kept = "runs/demo is finished all the same"
            watchdog.beat("making report.html", collective=True)
            time.sleep(60)
        """
    )
    assert done.returncode == 0
    assert done.stderr == (
        "[rank 0 @ here] no progress for 1 s while making report.html; runs/demo is finished all the same\n"
    )


def test_a_rank_that_beats_is_left_alone(capsys):
    ended = threading.Event()
    with Watchdog(0.4, "rank 0", ended.set) as watchdog:
        for _ in range(12):
            watchdog.beat("training step")
            time.sleep(0.1)
    assert not ended.is_set()
    assert capsys.readouterr().err == ""


def test_a_rank_that_waits_for_others_speaks_later_than_one_that_hangs_itself():
    times = {}
    started = time.monotonic()

    def hang(who: str, collective: bool) -> None:
        ended = threading.Event()
        with Watchdog(0.6, who, ended.set) as watchdog:
            watchdog.beat("something", collective=collective)
            assert ended.wait(10)
            times[who] = time.monotonic() - started

    threads = [threading.Thread(target=hang, args=args) for args in (("waits", True), ("hangs", False))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0.6 <= times["hangs"] < 0.9 <= times["waits"]


def test_a_rank_that_never_gives_the_interpreter_back_is_ended_too():
    """The watching thread cannot run then; faulthandler's can."""
    done, seconds = run(
        """
        import ctypes, trainer.ranks.watchdog
        trainer.ranks.watchdog._LONGEST_TICK_S = 0.2
        with Watchdog(0.4, "rank 0", lambda: os._exit(7)) as watchdog:
            time.sleep(0.3)
            watchdog.beat("computing")
            ctypes.PyDLL(None).sleep(30)
        """
    )
    assert done.returncode == 1
    assert "Timeout" in done.stderr
    assert seconds < 20


def test_the_watching_thread_ends_with_the_context():
    before = threading.active_count()
    with Watchdog(100, "rank 0", os.abort):
        pass
    assert threading.active_count() == before
