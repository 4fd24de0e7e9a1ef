"""The service's pages in a real browser: how they are served, and what it has against them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page
from served import checks, running

from cingulum.service import listening
from cingulum.service.app import create_app
from cingulum.service.callers import WithTokens
from cingulum.service.cluster import ClusterNow
from cingulum.service.jobs_now import JobsNow
from cingulum.service.runs_now import RunsNow
from cingulum.service.tokens import TokenFile
from jobs.job import Job
from jobs.schedulers.cluster_view import Picture
from jobs.store.store import Store

PHONE = {"width": 390, "height": 844}


@contextmanager
def serving(
    tokens: Path, runs: Sequence[Path], look: Callable[[list[Job]], Picture] | None = None
) -> Iterator[dict[str, str]]:
    """Serve the user's jobs and these folders of runs; yields addresses that sign in, by what they may.

    `look` tells of the cluster, every 0.3 s.
    """
    file = TokenFile(tokens)
    secrets = {may: file.add(may, may, 1) for may in ("write", "read")}
    with listening.at_port(0) as listener:
        now = JobsNow(Store(), watched_s=0.3)
        machines = look and ClusterNow(now.store, now.user, look, asked_s=0.3)
        app = create_app(now, WithTokens("ada", file), RunsNow(runs, now.facts), checks(), machines=machines)
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with running(app, listener):
            yield {may: f"{address}/jobs#{secret}" for may, secret in secrets.items()}


class Watched:
    """Opens pages and notes what a browser has against them."""

    def __init__(self, browser: Browser, address: str, **options: bool) -> None:
        self.complaints: list[str] = []
        self.address = address.split("/jobs#")[0]
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.page.on("request", lambda asked: self._ours(asked.url))
        self.page.goto(address)
        if "#" in address:  # it signs in, and loads the page again
            self.page.wait_for_url(lambda url: "#" not in url)

    def _ours(self, url: str) -> None:
        if not url.startswith(self.address):
            self.complaints.append(url)


def fits(page: Page) -> bool:
    """Return whether nothing on the page must be scrolled sideways."""
    return page.evaluate(
        "[document.documentElement, ...document.querySelectorAll('.scroll')]"
        ".every((one) => one.scrollWidth <= one.clientWidth)"
    )
