"""Runs side by side in a real browser: chosen in the lists, drawn, sorted, tested, by keyboard alone."""

from __future__ import annotations

import re

import browsers
import pytest
from jobs_to_serve import HOSTILE, fill, write_run
from made_up_run import make_run
from playwright.sync_api import expect
from watched_pages import PHONE, Watched, fits, serving

from jobs.store.store import Store

MARKUP = HOSTILE.replace("/", "")


@pytest.fixture
def service(slurm, tmp_path):
    """An address that signs in, before four runs of which two are judged on the same subjects."""
    fill(Store(), slurm, tmp_path / "jobs")
    by_hand = tmp_path / "by-hand"
    write_run(by_hand / "plain", 7)
    write_run(by_hand / "first", 5).rename(by_hand / MARKUP)
    for name, skill, seed in (("good", 2.5, 11), ("bad", 0.4, 11)):
        run = make_run(by_hand / name, skill=skill, seed=seed, subjects=60)
        text = (
            (run / "config.yaml").read_text().replace("global_batch: 8", f"global_batch: {int(skill * 10)}")
        )
        (run / "config.yaml").write_text(text)
    with serving(tmp_path / "tokens.json", [by_hand]) as addresses:
        yield addresses["write"]


def press_to(page, focused: str) -> None:
    """Press the tab key until what is focused has this label or text."""
    for _ in range(80):
        page.keyboard.press("Tab")
        if (
            page.evaluate("(document.activeElement.ariaLabel || document.activeElement.textContent).trim()")
            == focused
        ):
            return
    raise AssertionError(f"{focused} is not reached by the keyboard")


def test_runs_are_chosen_drawn_over_each_other_sorted_and_tested(service, tmp_path):
    with browsers.started() as browser:
        watched = Watched(browser, service)
        page, rows = watched.page, watched.page.locator("#rows tr")
        expect(rows).to_have_count(4)

        # A job and runs are chosen over both lists, by keyboard.
        press_to(page, "compare trains")
        page.keyboard.press("Space")
        page.goto(f"{watched.address}/runs")
        expect(page.locator("#compare")).to_have_text("Compare 1")
        for name in ("bad", "good", MARKUP):
            page.get_by_role("checkbox", name=f"compare {name}", exact=True).press("Space")
        page.get_by_role("link", name="Compare 4").press("Enter")
        expect(page.locator("#count")).to_have_text("4 runs")
        expect(page.locator("#rows a")).to_have_text(["trains", "bad", "good", MARKUP])
        assert page.locator("#rows img, #rows script, #charts img").count() == 0

        # Curves over each other; a tick takes one away, another metric adds a chart.
        charts = page.locator("#charts svg")
        expect(charts).to_have_count(2)
        expect(charts.nth(0).locator("path")).to_have_count(4)
        page.get_by_role("checkbox", name="draw good").press("Space")
        expect(charts.nth(0).locator("path")).to_have_count(3)
        page.get_by_label("learning rate").check()
        expect(charts).to_have_count(3)
        page.get_by_label("Logarithmic").check()
        page.get_by_label("Over").select_option("time")
        expect(charts.nth(0)).to_contain_text("s ")
        expect(page).to_have_url(re.compile("metrics=.*learning_rate.*axis=time"))
        page.get_by_role("link", name="bad").focus()
        expect(charts.nth(0).locator("path.on")).to_have_count(1)
        for _ in range(2):  # curves that are drawn anew keep it
            page.evaluate("document.getElementById('log').click()")
            expect(charts.nth(0).locator("path.on")).to_have_count(1)

        # It moves by itself, and what has the keyboard keeps it.
        write_run(tmp_path / "by-hand" / MARKUP, 6)
        expect(rows.nth(3)).to_contain_text("epoch 6 of 20")
        assert page.evaluate("document.activeElement.textContent") == "bad"

        # Order is in the address, as are the runs.
        page.get_by_label("Sort by").select_option("name")
        page.get_by_label("Order").select_option("up")
        expect(page.locator("#rows a")).to_have_text([MARKUP, "bad", "good", "trains"])
        page.reload()
        expect(page.locator("#rows a")).to_have_text([MARKUP, "bad", "good", "trains"])
        expect(charts).to_have_count(3)
        expect(rows.nth(1)).to_contain_text(" to ")
        page.set_viewport_size(PHONE)
        assert fits(page)
        page.set_viewport_size({"width": 1280, "height": 900})

        # Taking out and keeping are steps that the browser goes back.
        page.get_by_role("button", name="take out trains").press("Enter")
        expect(page.locator("#count")).to_have_text("3 runs")
        page.get_by_role("checkbox", name=f"draw {MARKUP}").press("Space")
        page.get_by_role("button", name="Keep those drawn").press("Enter")
        expect(page.locator("#count")).to_have_text("2 runs")
        page.get_by_role("button", name="Test every two runs").press("Enter")
        expect(page.locator("#tested")).to_contain_text("24 scans of 24 subjects")
        expect(page.locator("#pairs tr")).to_have_count(2)
        expect(page.locator("#pairs tr").nth(0)).to_contain_text("exchange by subject")
        expect(rows.nth(0)).to_contain_text("train.global_batch")
        expect(page.locator("#columns")).not_to_contain_text("Brier score")
        page.get_by_label("All figures").check()
        expect(page.locator("#columns")).to_contain_text("Brier score")
        page.set_viewport_size(PHONE)
        assert fits(page)
        page.go_back()
        expect(page.locator("#count")).to_have_text("3 runs")
        page.goto(f"{watched.address}/compare")
        expect(page.locator("#count")).to_contain_text("Nothing is chosen")
        assert watched.complaints == []
