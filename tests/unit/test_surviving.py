"""mpirun that is ended when the run says so; a script stands for mpirun."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from jobs.local import surviving

PROGRAM = """#!/bin/sh
[ "$1 $2 $3 $4 $5" = "--mca orte_enable_recovery 1 -x CINGULUM_END_FILE" ] || exit 99
shift 5
exec "$@"
"""

# mpirun that waits until it is asked to save; it ends by itself, should a test have failed.
SAVES = "trap 'exit 75' USR2; touch {up}; for i in $(seq 600); do sleep 0.05; done"


@pytest.fixture
def start(tmp_path, monkeypatch):
    monkeypatch.setattr(surviving, "_GRACE_S", 0.2)
    program = tmp_path / "mpirun"
    program.write_text(PROGRAM)
    program.chmod(0o755)

    def started(script, before=""):
        words = surviving.line([str(program), "sh", "-c", script])
        code = f"import sys; from jobs.local import surviving; surviving._GRACE_S = 0.2\n{before}\n"
        code += "sys.exit(surviving.main(sys.argv[1:]))"
        words = [words[0], "-c", code, *words[3:]]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.Popen(words, cwd=tmp_path, env=environment)

    return started


@pytest.mark.parametrize("waits", ["", "; exec sleep 60", "; trap '' TERM; while :; do sleep 0.1; done"])
def test_the_code_that_the_run_tells_counts_even_if_mpirun_does_not_end(start, tmp_path, waits):
    with start(f'echo 75 >"$CINGULUM_END_FILE"{waits}') as process:
        assert process.wait(20) == 75
    assert [path.name for path in tmp_path.iterdir()] == ["mpirun"]


def test_without_a_word_of_the_run_mpiruns_code_counts(start):
    with start("exit 3") as process:
        assert process.wait(20) == 3


def test_a_request_to_save_is_passed_on(start, tmp_path):
    with start(SAVES.format(up=tmp_path / "up")) as process:
        while not (tmp_path / "up").exists():
            time.sleep(0.02)
        process.send_signal(signal.SIGUSR2)
        assert process.wait(20) == 75


# Popen that returns only when mpirun is there and has been asked to save.
ASKED_AT_ONCE = """
import os, pathlib, signal, time
class Asked(surviving.subprocess.Popen):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        while not pathlib.Path({up!r}).exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGUSR2)
surviving.subprocess.Popen = Asked
"""


def test_a_request_to_save_that_comes_as_mpirun_starts_is_passed_on(start, tmp_path):
    up = str(tmp_path / "up")
    with start(SAVES.format(up=up), ASKED_AT_ONCE.format(up=up)) as process:
        assert process.wait(20) == 75
