"""Every page of the service by axe-core, in light and in dark: no violation of its rules."""

from __future__ import annotations

import browsers
import pytest
from axe_playwright_python.sync_playwright import Axe
from jobs_to_serve import fill, write_run
from made_up_run import make_divided
from playwright.sync_api import Page, expect
from watched_pages import PHONE, Watched, serving

from jobs.local import hosts
from jobs.store.store import Store


@pytest.fixture
def service(slurm, tmp_path):
    """An address that signs in, before jobs and two runs, one of which is divided."""
    fill(Store(), slurm, tmp_path / "jobs")
    make_divided(tmp_path / "runs" / "divided", 3)
    write_run(tmp_path / "runs" / "plain", 5)
    with serving(tmp_path / "tokens.json", [tmp_path / "runs"], hosts.look) as addresses:
        yield addresses["write"]


def violations(page: Page) -> list[str]:
    """Return the rules that the page breaks, and where, in light, in dark, and on a phone."""
    found = []
    wide = page.viewport_size
    for scheme, size in (("light", wide), ("dark", wide), ("light", PHONE)):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size(size)
        told = Axe().run(page).response["violations"]
        found += [f"{scheme} {one['id']}: {node['html']}" for one in told for node in one["nodes"]]
    page.set_viewport_size(wide)
    return found


def open_all(page: Page) -> None:
    """Open what is closed, and wait until it is filled."""
    for summary in page.locator("main summary:visible").all():
        summary.press("Enter")
    expect(page.locator("#time-inside")).not_to_be_empty()
    expect(page.locator("#placement-inside")).not_to_be_empty()


def test_no_page_breaks_a_rule_of_axe(service):
    with browsers.started() as browser:
        # The pages' policy lets no script in but their own: axe needs a context that ignores it.
        watched = Watched(browser, service, bypass_csp=True)
        page, at = watched.page, watched.address
        expect(page.locator("#rows tr")).to_have_count(4)
        broken = {"jobs": violations(page)}
        page.get_by_role("checkbox", name="compare trains").check()
        page.goto(f"{at}/runs")
        expect(page.locator("#rows tr")).to_have_count(2)
        page.get_by_role("button", name="Tick all that match").click()
        expect(page.locator("#compare")).to_have_text("Compare 3")
        broken["runs"] = violations(page)
        page.locator("#compare").click()
        expect(page.locator("#rows tr")).to_have_count(3)
        expect(page.locator("#charts svg")).to_have_count(2)
        broken["compare"] = violations(page)
        page.get_by_role("link", name="divided").click()
        expect(page.locator("h1")).to_have_text("divided")
        open_all(page)
        broken["run"] = violations(page)
        page.goto(f"{at}/jobs/4714")
        expect(page.locator("#log-text")).to_contain_text("epoch 1")
        page.get_by_label("Search the log").fill("epoch")
        page.get_by_role("button", name="Find").click()
        expect(page.locator("#log-matches button")).to_have_count(1)
        open_all(page)
        broken["job"] = violations(page)
        page.goto(f"{at}/jobs/4711")
        open_all(page)
        broken["array"] = violations(page)
        page.goto(f"{at}/cluster")
        expect(page.locator("#hosts tr")).to_have_count(1)
        broken["cluster"] = violations(page)
        page.goto(at)
        expect(page.locator("#running tr")).not_to_have_count(0)
        broken["home"] = violations(page)
        page.goto(f"{at}/submit")
        expect(page.locator("#fields .field")).not_to_have_count(0)
        broken["submit"] = violations(page)
        page.context.clear_cookies()
        page.goto(f"{at}/")
        expect(page.get_by_label("Token")).to_be_visible()
        broken["sign in"] = violations(page)
        assert [line for found in broken.values() for line in found] == [], broken
