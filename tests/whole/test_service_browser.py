"""The service's pages in a real browser: they move by themselves, and what users wrote stays text."""

from __future__ import annotations

import re
from pathlib import Path

import browsers
import pytest
from jobs_to_serve import HOSTILE, fill, write_run
from playwright.sync_api import expect
from watched_pages import PHONE, Watched, fits, serving

from cingulum.service.tokens import TokenFile
from jobs.store.store import Store
from trainer.report.page import template

MARKUP = HOSTILE.replace("/", "")
# A table, and names that would run.
REPORT = """<table class="sortable"><thead><tr><th><button>Run</button></th></tr></thead>
<tbody><tr><td>b</td></tr><tr><td>a</td></tr></tbody></table><script>document.title = "ran"</script>
<img src="x" onerror="document.title = 'ran'"><a href="javascript:document.title = 'ran'">run</a>
<script src="/static/page.js" type="module"></script>"""


@pytest.fixture
def jobs(slurm, tmp_path):
    return fill(Store(), slurm, tmp_path / "runs")


@pytest.fixture
def service(jobs, tmp_path):
    """Addresses that sign in, for who may write and who may read."""
    by_hand = tmp_path / "by-hand"
    write_run(by_hand / "first", 5).rename(by_hand / MARKUP)
    with serving(tmp_path / "tokens.json", [by_hand]) as addresses:
        yield addresses


def test_the_pages_move_by_themselves_and_do_what_they_say(service, jobs, slurm, tmp_path):
    with browsers.started() as browser:
        watched = Watched(browser, service["write"])
        page = watched.page
        rows = page.locator("#rows tr")
        expect(rows).to_have_count(4)
        assert page.url == f"{watched.address}/jobs"  # the token is gone from the address

        # What users wrote is text.
        expect(rows.nth(1).locator("a")).to_have_text(HOSTILE)
        assert page.locator("#rows img, #rows script, #rows b").count() == 0

        # The list moves by itself.
        trains = Path(jobs["trains"].spec.run)
        expect(rows.nth(0)).to_contain_text("epoch 12 of 20")
        write_run(trains, 13)
        expect(rows.nth(0)).to_contain_text("epoch 13 of 20")
        slurm.becomes("4713", "RUNNING", hosts=("n9",))
        expect(rows.nth(1)).to_contain_text("n9")

        # Filters are in the address, and kept there.
        page.get_by_label("Search").fill("n3")
        expect(rows).to_have_count(1)
        page.locator("[name=state]").select_option("FAILED")
        expect(page).to_have_url(re.compile(r"/jobs\?text=n3&state=FAILED$"))
        page.reload()
        expect(rows).to_have_count(1)
        assert page.get_by_label("Search").input_value() == "n3"
        page.locator("[name=state]").select_option("TIMEOUT")
        expect(page.locator("#count")).to_have_text("no job matches")
        page.go_back()
        expect(rows).to_have_count(1)
        page.goto(f"{watched.address}/jobs")
        expect(rows).to_have_count(4)
        page.locator("[name=sort]").select_option("name")
        expect(page).to_have_url(re.compile(r"/jobs\?sort=name$"))
        names = ["trains", "folds", "failed", HOSTILE]
        expect(rows.locator("a")).to_have_text(names)
        page.locator("[name=order]").select_option("up")
        expect(rows.locator("a")).to_have_text(names[::-1])
        page.go_back()
        expect(rows.locator("a")).to_have_text(names)

        # A launcher that does not answer: what waits or runs is marked.
        marks = (
            "[...document.querySelectorAll('.state')].map((one) => getComputedStyle(one, '::after').content)"
        )
        slurm.refuses = "states"
        expect(page.locator("#warnings")).to_contain_text("did not answer")
        assert sorted(set(page.evaluate(marks))) == ['" (out of date)"', "none"]
        slurm.refuses = None
        expect(page.locator("#warnings")).to_be_empty()
        assert set(page.evaluate(marks)) == {"none"}
        page.goto(f"{watched.address}/jobs")
        expect(rows).to_have_count(4)

        # By keyboard to a job, whose curves and log move.
        page.locator("[name=order]").focus()
        while page.evaluate("document.activeElement.textContent") != "trains":
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_have_text("trains")
        expect(page.locator("#facts")).to_contain_text("9val loss 0.4")
        charts = page.locator("#charts svg")
        expect(charts).to_have_count(7)
        before = charts.nth(0).locator("path").nth(0).get_attribute("d")
        write_run(trains, 14)
        expect(page.locator("#facts")).to_contain_text("epoch 14 of 20")
        assert charts.nth(0).locator("path").nth(0).get_attribute("d") != before
        log = Path(jobs["trains"].folder) / "out-0.log"
        with log.open("a") as file:
            file.write("rank 1: <script>alert(3)</script>\n")
        expect(page.locator("#log-text")).to_contain_text("rank 1: <script>alert(3)</script>")
        # Smoothed, the raw line stays behind; a logarithmic axis has other ticks.
        lines, ticks = charts.nth(0).locator("path"), charts.nth(0).locator("text")
        raw, even = [line.get_attribute("d") for line in lines.all()], ticks.all_inner_texts()
        page.get_by_label("Smoothing").fill("0.8")
        expect(lines).to_have_count(2 * len(raw))
        smooth = [line.get_attribute("d") for line in lines.all()]
        assert smooth[::2] == raw and smooth[1] not in raw
        page.get_by_label("Logarithmic").check()
        assert ticks.all_inner_texts() != even
        page.get_by_text("Configuration", exact=True).click()
        expect(page.locator("#config")).to_contain_text("global_batch: 8")

        # A phone, and the dark.
        page.set_viewport_size(PHONE)
        assert fits(page)
        page.emulate_media(color_scheme="dark")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(16, 21, 28)"

        # To cancel takes two decisions; the history says who.
        page.get_by_role("button", name="Cancel job").click()
        page.get_by_role("button", name="Keep it").click()
        assert slurm.told == []
        page.get_by_role("button", name="Cancel job").press("Enter")
        page.get_by_role("dialog").get_by_role("button", name="Cancel job").press("Enter")
        expect(page.locator("#state")).to_have_text("CANCELLED")
        expect(page.locator("#history")).to_contain_text("cancel asked for by ada (service, token write)")
        assert slurm.told == [("cancel", "4714", None)]
        expect(page.get_by_role("button", name="Cancel job")).to_have_count(0)
        page.goto(f"{watched.address}/jobs")
        expect(rows).to_have_count(4)
        assert fits(page)

        # What runs, what needs attention: the first page, which moves, too.
        page.goto(watched.address)
        expect(page.get_by_role("link", name="Cingulum")).to_have_attribute("aria-current", "page")
        expect(page.locator("#attention")).to_contain_text("rank 2 @ n3 was lost: <b>no</b>")
        waiting = page.locator("#running tr", has_text=HOSTILE)
        slurm.becomes("4713", "FAILED", hosts=("n9",))
        expect(waiting).to_have_count(0)
        expect(page.locator("#attention")).to_contain_text(HOSTILE)
        assert fits(page)

        # Runs that nobody submitted: the same by another list.
        page.get_by_role("link", name="Runs").press("Enter")
        expect(page.get_by_role("link", name="Runs")).to_have_attribute("aria-current", "page")
        expect(rows).to_have_count(1)
        expect(rows.nth(0)).to_contain_text("STOPPED")
        write_run(tmp_path / "by-hand" / "second", 7)
        expect(rows.nth(0)).to_contain_text("epoch 7 of 20")
        assert fits(page) and page.locator("#rows img, #rows script").count() == 0
        page.get_by_label("Search").fill("onerror")
        expect(rows).to_have_count(1)
        page.get_by_role("link", name=MARKUP).press("Enter")
        expect(page.locator("h1")).to_have_text(MARKUP)
        expect(page.locator("#facts")).to_contain_text("epoch 5 of 20")
        expect(charts).to_have_count(7)
        write_run(tmp_path / "by-hand" / MARKUP, 6)
        expect(page.locator("#facts")).to_contain_text("epoch 6 of 20")
        assert fits(page)

        # A report runs the script that reports have, and nothing else.
        html = template("base.html.j2").render().replace("<main>", f"<main>{REPORT}")
        (trains / "report.html").write_text(html)
        page.goto(f"{watched.address}/jobs/4714/report")
        expect(page.locator("td").first).to_have_text("b")
        page.get_by_role("button", name="Run").click()
        expect(page.locator("td").first).to_have_text("a")
        assert page.title() == " · Cingulum report".strip() and page.evaluate("window.origin") == "null"
        refused = [text for text in watched.complaints if "Content Security Policy" in text]
        assert len(refused) >= 3 and watched.complaints == refused

        # Who may only read has nothing to press.
        reader = Watched(browser, service["read"])
        expect(reader.page.locator("#rows tr")).to_have_count(4)  # it has signed in
        reader.page.goto(f"{reader.address}/jobs/4711")
        expect(reader.page.locator("h1")).to_have_text("folds")
        expect(reader.page.locator("#state")).to_have_text("COMPLETED")
        reader.page.locator("#task").select_option("1")
        expect(reader.page.locator("#state")).to_have_text("RUNNING")
        assert reader.page.locator("#cancel").count() == 0
        assert reader.complaints == []

        # Nor goes on looking once the token is revoked: the page asks for another one, and for nothing else.
        asked: list[str] = []
        reader.page.on("request", lambda request: asked.append(request.url))
        TokenFile(tmp_path / "tokens.json").revoke("read")
        expect(reader.page.locator("#sign-in")).to_be_visible(timeout=10_000)
        reader.page.wait_for_timeout(4000)  # longer than until a lost connection is tried again
        assert len([url for url in asked if "/api/" in url]) < 10
        assert [line for line in reader.complaints if "401 (Unauthorized)" not in line] == []
