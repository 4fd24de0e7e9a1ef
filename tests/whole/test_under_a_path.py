"""Pages under a path of a name that others have, too, as Open OnDemand's and many sites' proxies put them."""

from __future__ import annotations

import re

import browsers
import pytest
from behind_nginx import proxied
from jobs_to_serve import fill, write_run
from playwright.sync_api import expect

from jobs.store.store import Store

ROOT = "/pun/ada_1"


# With the path passed on, as Open OnDemand's /node does, and left out, as its /rnode does.
@pytest.mark.parametrize("passed", ["", ":/"])
def test_every_address_of_the_pages_is_under_their_path(slurm, tmp_path, passed):
    fill(Store(), slurm, tmp_path / "runs")
    by_hand = write_run(tmp_path / "by-hand" / "first", 5)
    asked, missing, wrong = [], [], []
    with (
        proxied(lambda port: f"http://127.0.0.1:{port}", root=ROOT, passed=passed, runs=[by_hand.parent]) as (
            address,
            _,
        ),
        browsers.started() as browser,
    ):
        context = browser.new_context(http_credentials={"username": "ada", "password": "pw"})
        page = context.new_page()
        page.on("response", lambda answer: asked.append(answer.url.removeprefix(address)))
        page.on("response", lambda answer: answer.status == 404 and missing.append(answer.url))
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        home = f"{address}{ROOT}"
        page.goto(f"{home}/")
        page.get_by_role("link", name="Jobs", exact=True).click()
        expect(page.locator("#rows tr")).to_have_count(4)
        expect(page.locator("#live")).to_have_text("live")  # events come through
        slurm.becomes("4713", "RUNNING", hosts=("n9",))
        links = page.locator("a[href^='/']").evaluate_all("all => all.map((one) => one.getAttribute('href'))")
        assert len(links) > 7 and all(link.startswith(f"{ROOT}/") for link in links)

        page.get_by_role("link", name="trains").click()
        expect(page.locator("#charts svg")).to_have_count(7)
        expect(page.locator("#log-text")).to_contain_text("epoch 1 loss")
        page.locator("#cancel").click()
        page.locator("#yes").click()
        expect(page.locator("#state")).to_have_text("CANCELLED")

        page.get_by_role("link", name="Runs").click()
        page.get_by_role("link", name="first").click()
        expect(page.locator("#facts")).to_contain_text("epoch 5 of 20")
        page.get_by_role("link", name="Cluster").click()
        expect(page.locator("#live")).to_have_text("live")

        page.get_by_role("link", name="Submit", exact=True).click()
        expect(page.locator(".field")).not_to_have_count(0)
        page.locator("#yaml").fill((tmp_path / "mine.yaml").read_text())
        page.locator("#submit:not([disabled])").click()
        page.locator("#yes:not([disabled])").click()
        expect(page).to_have_url(re.compile(f"{re.escape(home)}/jobs/new-5$"))
        expect(page.locator("h1")).to_have_text("mine")
        expect(page.locator("#history")).to_contain_text("submit asked for by ada (service, proxy)")

        page.goto(f"{home}/compare?runs=new-4,new-1_0")
        expect(page.locator("#rows tr")).to_have_count(2)
        context.close()
    assert len(asked) > 40 and [one for one in asked if not one.startswith(f"{ROOT}/")] == []
    # Of the new job there is no run and no log yet.
    assert [one for one in missing if "/jobs/new-5/" not in one] == []
    assert [text for text in wrong if "Failed to load resource" not in text] == []
