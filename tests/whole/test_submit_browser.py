"""The form by which jobs are submitted, in a real browser."""

from __future__ import annotations

import re

import browsers
import pytest
from jobs_to_serve import HOSTILE
from playwright.sync_api import expect
from served import checks, running

from cingulum.service import listening
from cingulum.service.app import create_app
from cingulum.service.callers import WithTokens
from cingulum.service.jobs_now import JobsNow
from cingulum.service.tokens import TokenFile
from jobs.store import sharing
from jobs.store.store import Store

PHONE = {"width": 390, "height": 844}


@pytest.fixture
def service(slurm, tmp_path):
    """An address, and the token of who may write or read, of a service in a folder with a shard set."""
    file = TokenFile(tmp_path / "tokens.json")
    secrets = {may: file.add(may, may, 1) for may in ("write", "read")}
    with listening.at_port(0) as listener:
        app = create_app(JobsNow(Store(), watched_s=0.3), WithTokens("ada", file), looks=checks())
        with running(app, listener):
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", secrets


def test_a_run_is_checked_while_one_types_shown_submitted_held_shared_and_submitted_again(
    service, slurm, monkeypatch
):
    address, secrets = service
    monkeypatch.setattr(sharing, "groups", lambda: ("brain", HOSTILE))
    complaints: list[str] = []
    with browsers.started() as browser:
        page = browser.new_context().new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.goto(f"{address}/#{secrets['write']}")
        page.get_by_role("link", name="Submit").press("Enter")
        expect(page.locator(".field")).not_to_have_count(0)
        expect(page.locator("#submit")).to_be_disabled()

        # What is wrong is told, with the key that it is about; what users write stays text.
        yaml, problem = page.locator("#yaml"), page.locator("#problem")
        yaml.fill(f"name: '{HOSTILE}'\ndata: {{shards: shards}}\n")
        expect(problem).to_contain_text("must be letters, digits")
        assert problem.locator("img, script").count() == 0
        yaml.fill("name: first\ndata: {shards: shards}\ntrain: {global_batch: 12}\n")
        expect(page.locator("#submit")).to_be_enabled()
        expect(problem).to_be_empty()
        page.locator("#search").fill("epochs")
        epochs = page.locator("[id='key-train.epochs']")
        expect(epochs).to_have_attribute("placeholder", "80")
        epochs.fill("0")
        expect(problem).to_contain_text("train.epochs=0: must be at least 1")
        expect(epochs).to_have_attribute("aria-invalid", "")
        expect(page.locator("#submit")).to_be_disabled()
        epochs.fill("3")
        expect(page.locator("#submit")).to_be_enabled()
        page.get_by_role("button", name="Write changes into the YAML").click()
        expect(yaml).to_have_value(re.compile(r"epochs: 3\n"))
        page.locator("[name=nodes]").fill("5")
        expect(problem).to_contain_text("cannot be shared evenly by 5")
        page.locator("[name=nodes]").fill("2")
        page.locator("summary", has_text="More").click()
        page.locator("[name=then]").fill("report")
        expect(page.locator("#dry h3")).to_have_text(
            ["1 of 2: first (train)", "2 of 2: first-report (report)"]
        )
        page.locator("summary", has_text="job.sbatch").nth(1).click()
        expect(page.locator("#dry")).to_contain_text("#!/bin/bash")
        page.set_viewport_size(PHONE)
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        assert slurm.started == []

        # Sent only after the queue has been asked, and once, though the answer is lost.
        slurm.refuses = "preflight"
        page.locator("#submit").click()
        expect(page.locator("#sure-queue")).to_have_text("no such partition Mend the site.")
        expect(page.locator("#yes")).to_be_disabled()
        page.get_by_role("button", name="Not yet").click()
        slurm.refuses = None
        page.locator("#submit").press("Enter")
        expect(page.locator("#sure-queue")).to_contain_text("train to start tomorrow")

        def lose(route) -> None:
            route.fetch()
            route.abort()

        page.route("**/api/v1/jobs", lose)
        page.locator("#yes").click()
        expect(page.locator("#yes")).to_be_enabled()
        assert [spec.kind for spec, _ in slurm.started] == ["train", "report"]
        page.unroute("**/api/v1/jobs")
        page.locator("#yes").click()
        expect(page.locator("h1")).to_have_text("first")
        expect(page.locator("#history")).to_contain_text("submit asked for by ada (service, token write)")
        assert len(slurm.started) == 2

        # The job is held.
        page.get_by_role("button", name="Hold").click()
        history = page.locator("#history")
        expect(history).to_contain_text("hold asked for by ada")

        # To share it takes two decisions, to end that one; the history says who.
        dialog, share = page.get_by_role("dialog"), page.get_by_role("button", name="Share", exact=True)
        share.click()
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        page.get_by_role("button", name="Not yet").click()
        assert Store().shared_with(Store().get("4711")) == []
        share.press("Enter")
        page.locator("#share-group").select_option(HOSTILE)
        dialog.get_by_role("button", name="Share").press("Enter")
        expect(history).to_contain_text(f"share with {HOSTILE} asked for by ada (service, token write)")
        expect(page.locator("#facts")).to_contain_text(f"Shared with{HOSTILE}")
        share.click()
        expect(page.locator("#share-group option:not([hidden])")).to_have_text(["brain"])
        dialog.get_by_role("button", name="Share").click()
        expect(page.get_by_role("button", name="Stop sharing with brain")).to_be_visible()
        expect(share).to_have_count(0)
        page.get_by_role("button", name=f"Stop sharing with {HOSTILE}").press("Enter")
        expect(history).to_contain_text(f"stop sharing with {HOSTILE} asked for by ada")
        expect(page.locator("#facts")).to_contain_text("Shared withbrain")
        assert Store().shared_with(Store().get("4711")) == ["brain"]

        # It is submitted again with changes.
        page.get_by_role("link", name="Submit again with changes").click()
        expect(yaml).to_have_value(re.compile(r"name: first\n"))
        expect(page.locator("[name=nodes]")).to_have_value("2")
        assert complaints == []

        # Who may only read has nothing to press, and no form.
        reader = browser.new_context().new_page()
        reader.goto(f"{address}/jobs#{secrets['read']}")
        expect(reader.locator("#rows tr")).to_have_count(2)
        assert reader.get_by_role("link", name="Submit").count() == 0
        reader.goto(f"{address}/jobs/4711")
        expect(reader.locator("#state")).to_have_text("PENDING")
        assert reader.locator("#acts, #share").count() == 0
