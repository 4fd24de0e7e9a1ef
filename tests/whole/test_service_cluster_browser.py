"""The page of the cluster in a real browser: what is free, who waits for what, and when it is out of date."""

from __future__ import annotations

import getpass
from pathlib import Path

import browsers
from jobs_to_serve import HOSTILE, fill
from playwright.sync_api import expect
from watched_pages import PHONE, Watched, fits, serving

from jobs.job import Job
from jobs.schedulers.cluster_view import Picture, Queued
from jobs.schedulers.slurm import queue as slurm_answers
from jobs.store.store import Store
from trainer.errors import LauncherError

ANSWERS = Path(__file__).parent.parent / "unit" / "slurm_answers"


class Answer:
    """What Slurm answers, unless it refuses."""

    refuses = False

    def look(self, jobs: list[Job]) -> Picture:
        if self.refuses:
            raise LauncherError("slurmctld is away")
        hosts = slurm_answers.hosts_in((ANSWERS / "cluster-sinfo.txt").read_text())
        queue = (
            Queued("98", "eve", "PENDING", HOSTILE, cpus=64, gpus=8, submitted=1.7e9),
            Queued(
                "4714", getpass.getuser(), "RUNNING", nodes=2, cpus=4, gpus=2, hosts="n[1-2]", started=1.7e9
            ),
        )
        return Picture("slurm", hosts, queue)


def test_the_page_tells_what_is_free_and_says_when_the_scheduler_is_silent(slurm, tmp_path):
    fill(Store(), slurm, tmp_path / "jobs")
    answer = Answer()
    with serving(tmp_path / "tokens.json", [], answer.look) as addresses, browsers.started() as browser:
        watched = Watched(browser, addresses["write"])
        page, queue = watched.page, watched.page.locator("#queue tr")
        expect(page.locator("#rows tr")).to_have_count(4)
        page.get_by_role("link", name="Cluster").press("Enter")
        expect(page.locator("#facts")).to_contain_text("1 of 6")
        expect(page.locator("#facts")).to_contain_text("1 running, 0 waiting")
        expect(queue).to_have_count(2)
        expect(queue.nth(0)).to_contain_text(HOSTILE)
        assert page.locator("#queue img, #queue script").count() == 0
        expect(page.locator("#hosts tr").nth(2)).to_contain_text("fan | broken")
        page.get_by_label("Only my jobs").press("Space")
        expect(queue).to_have_count(1)
        page.get_by_role("link", name="trains").focus()
        answer.refuses = True
        expect(page.locator("#warnings")).to_contain_text("out of date")
        expect(page.locator("#as-of")).to_contain_text("out of date")
        expect(queue).to_have_count(1)
        assert page.evaluate("document.activeElement.textContent") == "trains"
        page.set_viewport_size(PHONE)
        assert fits(page)
        answer.refuses = False
        expect(page.locator("#warnings")).to_be_empty()
        page.get_by_label("Search").fill("n2")
        expect(page.locator("#hosts tr")).to_have_count(1)
        page.get_by_label("Search").fill("")
        page.get_by_role("link", name="trains").press("Enter")
        expect(page.locator("h1")).to_have_text("trains")
        assert watched.complaints == []
