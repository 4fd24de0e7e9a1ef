"""Outside programs that must answer: what they say, and what is said of those that do not."""

from __future__ import annotations

import time

from wording import fails_with

from jobs import programs
from jobs.programs import ask
from trainer.errors import LauncherError


def test_what_a_program_prints_comes_back_whatever_its_bytes():
    assert ask(["sh", "-c", "cat; printf '\\377'; echo no >&2"], seconds=20, stdin="told ") == "told \ufffd"


def test_it_gets_our_environment_or_the_one_that_was_given(monkeypatch):
    monkeypatch.setenv("OURS", "1")
    assert ask(["sh", "-c", "echo $OURS"], seconds=20) == "1\n"
    assert ask(["/bin/sh", "-c", "echo $OURS$THEIRS"], seconds=20, environment={"THEIRS": "2"}) == "2\n"


def test_a_program_that_fails_hangs_or_is_missing_is_told_with_what_it_was_for_and_the_cure():
    with fails_with(LauncherError):
        ask(["sh", "-c", "echo no leaves >&2; exit 3"], seconds=20, doing="making tea", cure="buy some")
    with fails_with(LauncherError):
        ask(["sh", "-c", "echo all gone; exit 3"], seconds=20)
    with fails_with(LauncherError):
        ask(["sleep", "9"], seconds=0.05, doing="making tea")
    with fails_with(LauncherError):
        ask(["no-such-kettle"], seconds=20)


def test_a_program_that_takes_too_long_may_put_its_things_away_first(tmp_path):
    script = 'trap "touch $0; exit" TERM; echo ready; while :; do sleep 0.01; done'
    with fails_with(LauncherError):
        ask(["sh", "-c", script, str(tmp_path / "away")], seconds=0.3)
    assert (tmp_path / "away").exists()


def test_a_program_that_will_not_end_is_killed(monkeypatch):
    monkeypatch.setattr(programs, "GRACE_S", 0.1)
    started = time.monotonic()
    with fails_with(LauncherError):
        ask(["sh", "-c", 'trap "" TERM; while :; do sleep 0.01; done'], seconds=0.2)
    assert time.monotonic() - started < 5
