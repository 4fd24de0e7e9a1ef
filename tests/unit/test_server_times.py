"""Where a server's time goes adds up."""

from __future__ import annotations

import pytest

from trainer.strategies.servers.serving import ServerTimes


def test_the_parts_of_an_update_are_told_apart_and_add_up():
    now = [0.0]
    times = ServerTimes(7, clock=lambda: now[0])

    def at(moment, what, *arguments):
        now[0] = moment
        what(*arguments)

    at(2.0, times.received)
    at(3.0, times.received)
    at(3.5, times.updated, 0.5)
    at(4.0, times.answered)
    at(4.25, times.left)
    at(6.0, times.received)  # the next update
    assert times.take() == [{"step": 8, "receive": 1.5, "update": 0.5, "send": 0.25, "wait": 2.0}]
    at(7.0, times.answered)
    (row,) = times.take()
    assert row == {"step": 9, "receive": 1.0, "update": 0.0, "send": 0.0, "wait": 1.75}
    assert times.take() == []
    assert sum(row.values()) - 9 == pytest.approx(7.0 - 4.25)
