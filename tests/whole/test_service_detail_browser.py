"""The page of one job or run in a real browser: log search, where the time goes, placement, relations."""

from __future__ import annotations

from pathlib import Path

import browsers
import pytest
from jobs_to_serve import add, fill
from made_up_run import make_divided
from playwright.sync_api import expect
from watched_pages import PHONE, Watched, fits, serving

from jobs.schedulers.base import TaskState
from jobs.store.store import Store


@pytest.fixture
def service(slurm, tmp_path):
    """An address that signs in, before a job whose network is divided, its run, and a long log."""
    fill(Store(), slurm, tmp_path / "jobs")
    job = add(
        Store(), slurm, "divided", TaskState(0, "RUNNING"), run=make_divided(tmp_path / "runs" / "it", 3)
    )
    lines = [f"{number} <b>step</b> {'lost rank' if number % 400 == 399 else ''}" for number in range(20_000)]
    (Path(job.folder) / "out-0.log").write_text("\n".join(lines) + "\nthe end\n")
    with serving(tmp_path / "tokens.json", [tmp_path / "runs"]) as addresses:
        yield addresses["write"]


def test_the_page_of_a_job_finds_lines_and_tells_its_time_placement_and_run(service):
    with browsers.started() as browser:
        watched = Watched(browser, service)
        page = watched.page
        page.goto(f"{watched.address}/jobs/4715")
        log = page.locator("#log-text")
        expect(log).to_contain_text("the end")

        # A line is found, gone to and marked; the way back is to follow.
        page.get_by_label("Search the log").fill("LOST rank")
        page.get_by_label("Search the log").press("Enter")
        found = page.locator("#log-matches button")
        expect(found).to_have_count(50)
        expect(page.locator("#log-found")).to_contain_text("50 lines in")
        found.nth(1).press("Enter")
        expect(page.locator("#log-text mark")).to_have_text("799 <b>step</b> lost rank")
        assert not page.get_by_label("Follow").is_checked() and page.locator("#log-text b").count() == 0
        assert page.evaluate("document.activeElement.id") == "log-text"
        page.get_by_role("button", name="Later").press("Enter")
        expect(log).to_contain_text("4000 <b>step</b>")
        page.get_by_role("button", name="Earlier").press("Enter")
        expect(log).to_contain_text("0 <b>step</b>")
        page.get_by_label("Follow").check()
        expect(log).to_contain_text("the end")
        page.get_by_label("Search the log").fill("no such words")
        page.get_by_role("button", name="Find").press("Enter")
        expect(page.locator("#log-found")).to_contain_text("no lines in")

        # Time and placement, as the commands and the report tell them.
        page.locator("#time summary").press("Enter")
        expect(page.locator("#time-inside")).to_contain_text("Rank 2 needs most time for itself")
        page.locator("#placement summary").press("Enter")
        expect(page.locator("#placement-inside .strip")).to_have_count(40)
        expect(page.locator(".strip").nth(0).locator("i")).to_have_text(["0", "1", "2"])
        widths = (
            page.locator(".strip").nth(0).locator("i").evaluate_all("all => all.map((i) => i.clientWidth)")
        )
        assert widths[0] > 1.5 * widths[1] > 1.5 * widths[2]

        # Settings beside those of another run.
        page.get_by_text("Configuration against another run").press("Enter")
        page.get_by_label("Other run").select_option("trains (4714)")
        expect(page.locator("#differ-rows")).to_contain_text("train.epochs")
        page.set_viewport_size(PHONE)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")

        # From a job to its run and back, and to both beside each other.
        page.locator("#facts a", has_text="/it").press("Enter")
        expect(page.locator("h1")).to_have_text("it")
        expect(page.locator("#facts")).to_contain_text("divided (4715) RUNNING")
        page.locator("#time summary").press("Enter")
        expect(page.locator("#time-inside")).to_contain_text("node-1")
        page.get_by_role("link", name="divided (4715)").press("Enter")
        expect(page.locator("h1")).to_have_text("divided")
        page.get_by_text("Configuration against another run").press("Enter")
        page.get_by_label("Other run").select_option("trains (4714)")
        page.get_by_role("link", name="Compare both").press("Enter")
        expect(page.locator("#count")).to_have_text("2 runs")
        assert fits(page)
        assert watched.complaints == []
