"""Benchmarks end when what they measure is known well enough."""

from __future__ import annotations

import pytest

from cingulum.bench import workers
from trainer.bench.spreads import spread, widest


@pytest.mark.parametrize(
    "repeats, enough_after, done", [(40, 1, workers.FEWEST), (40, 20, 20), (40, 99, 40), (3, 1, 3)]
)
def test_measuring_ends_when_it_is_enough_but_not_before_some_repeats(
    repeats: int, enough_after: int, done: int
) -> None:
    measured, shown = [], []
    found = workers.in_turn(
        [lambda: measured.append("a"), lambda: measured.append("b")],
        repeats,
        lambda now, total: shown.append((now, total)),
        lambda: len(measured) >= 2 * enough_after,
    )
    assert found == done == measured.count("a") == measured.count("b")
    assert shown[-1] == (2 * done, 2 * done)


def test_the_widest_interval_counts_those_of_peers_among_them() -> None:
    narrow, wide = spread("efficiency", [0.98, 0.98, 0.98]), spread("lead", [1.0, 1.1, 1.2])
    assert widest(narrow) == 0.0
    assert widest({**narrow, "peers": {"ddp": wide, "other": {"skipped": "not there"}}}) == pytest.approx(
        (wide["lead_high"] - wide["lead_low"]) / 2
    )
    assert widest({"step_s": 3.0}) == 0.0
