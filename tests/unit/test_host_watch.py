"""Hosts that are asked again and again; here a host answers as long as its file is there."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.local import host_watch
from jobs.local.host_watch import HostWatch, silent_among
from jobs.schedulers.base import PROBED

PROBE = ("test", "-e", PROBED)


def wait(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20
    while not done():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.005)


@pytest.fixture
def hosts(tmp_path: Path) -> list[str]:
    names = [str(tmp_path / name) for name in ("n1", "n2")]
    for name in names:
        Path(name).touch()
    return names


def test_a_host_is_silent_only_after_several_missing_answers_in_a_row(hosts, monkeypatch) -> None:
    asked: list[str] = []
    plain = host_watch._ask
    monkeypatch.setattr(host_watch, "_ask", lambda probe, host: asked.append(host) or plain(probe, host))
    watch = HostWatch(PROBE, hosts, every_s=0.01, answer_s=5)
    wait(lambda: watch.silent() == [] and asked.count(hosts[1]) > host_watch.MISSED, "answers")
    Path(hosts[1]).unlink()
    wait(lambda: bool(watch.silent()), "a silent host")
    assert watch.silent() == [hosts[1]]
    Path(hosts[1]).touch()
    wait(lambda: not watch.silent(), "an answer")
    watch.close()


def test_a_link_that_flaps_is_no_silent_host(tmp_path) -> None:
    """The second and the third question stay without an answer."""
    asked = tmp_path / "asked"
    script = 'echo >>"$1"; n=$(wc -l <"$1"); [ "$n" -lt 2 ] || [ "$n" -gt 3 ]'
    watch = HostWatch(("sh", "-c", script, "sh", PROBED), [str(asked)], every_s=0.01, answer_s=20)
    wait(
        lambda: watch.silent() != [] or (asked.exists() and len(asked.read_text()) > 5), "five more questions"
    )
    assert watch.silent() == []
    watch.close()


def test_a_question_without_an_answer_in_time_counts_as_missing(tmp_path) -> None:
    script = 'if [ -e "$1" ]; then exec sleep 60; else touch "$1"; fi'
    watch = HostWatch(("sh", "-c", script, "sh", PROBED), [str(tmp_path / "n1")], every_s=0.01, answer_s=0.2)
    wait(lambda: bool(watch.silent()), "a silent host")
    watch.close()
    assert silent_among(("sleep", PROBED), ["60", "0"], 0.5) == ["60"]


def test_a_host_that_never_answered_is_not_accused(monkeypatch) -> None:
    asked: list[str] = []
    plain = host_watch._ask
    monkeypatch.setattr(host_watch, "_ask", lambda probe, host: asked.append(host) or plain(probe, host))
    watch = HostWatch(("false",), ["n1"], every_s=0.01, answer_s=5)
    wait(lambda: watch.silent() == [] and len(asked) > 2 * host_watch.MISSED, "questions")
    assert watch.silent() == []
    watch.close()


def test_hosts_are_asked_at_once_and_then_only_when_it_is_time(monkeypatch) -> None:
    asked: list[str] = []
    plain = host_watch._ask
    monkeypatch.setattr(host_watch, "_ask", lambda probe, host: asked.append(host) or plain(probe, host))
    watch = HostWatch(("true",), ["n1"], every_s=600, answer_s=5)
    wait(lambda: watch.silent() == [] and bool(asked) and not watch._asked, "an answer")
    assert watch.silent() == [] and asked == ["n1"]


def test_a_question_that_cannot_be_asked_says_nothing_about_a_host() -> None:
    assert silent_among(("/nowhere/ssh", PROBED), ["n1"], 5) == []
    watch = HostWatch(("/nowhere/ssh", PROBED), ["n1"], every_s=0.0, answer_s=5)
    assert [watch.silent() for _ in range(2 * host_watch.MISSED)] == [[]] * 2 * host_watch.MISSED
    watch.close()
