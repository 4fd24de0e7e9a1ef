"""A real browser for tests of pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

# Five seconds, its default, may pass before a page has its answers on two cores that others use, too.
expect.set_options(timeout=30_000)


@contextmanager
def started() -> Iterator[Browser]:
    """Start Chromium; skip the test where there is none, or fail if CINGULUM_REQUIRE_BROWSER=1."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        why = "no Chromium here; Debian: apt-get install chromium"
        if os.environ.get("CINGULUM_REQUIRE_BROWSER") == "1":
            pytest.fail(f"CINGULUM_REQUIRE_BROWSER=1, and {why}")
        pytest.skip(why)
    with sync_playwright() as playwright:
        # As root, which containers are, Chromium has no sandbox; the pages are our own.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()
