"""Steps that benchmarks/held_out.py has measured, and what the strategies predicted to be fastest lose."""

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


def test_what_is_lost_is_told_for_each_network_hosts_and_links(page):
    def case(rate, label, predicted, took):
        return page.Case("vgg", 4, rate, label, predicted, {"s": took})

    some = [
        case("50mbit", "data", 1.0, 2.0),
        case("50mbit", "spatial", 2.0, 1.0),
        case("200mbit", "data", 1.0, 1.0),
        case("200mbit", "spatial", 2.0, 4.0),
    ]
    assert page.chosen(some) == [2.0, 1.0]
