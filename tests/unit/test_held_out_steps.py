"""Measured steps of benchmarks/held_out.py."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def page(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    import held_out_page

    return held_out_page


def test_a_rank_that_computes_nothing_does_not_count(page):
    two = [{"began": began, "seconds": [9.0, 1.0, 2.0], "planned_s": 0.5} for began in (10.0, 10.5)]
    idle = {"began": 11.4, "seconds": [0.0, 0.0, 0.0], "planned_s": 0.0}
    assert page.steps([[*two, idle]]) == pytest.approx([1.0, 2.0])
