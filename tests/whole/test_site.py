"""The documentation as a site, as `make docs` builds it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def build(root: Path, to: Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(to)]
    return subprocess.run(
        line,
        cwd=root,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )


@pytest.fixture
def checkout(tmp_path) -> Path:
    """The files of the site, to be changed."""
    for name in ("docs", "tools"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    return tmp_path


def test_it_has_every_page_and_no_dead_link(tmp_path):
    built = build(ROOT, tmp_path / "site")
    assert built.returncode == 0, built.stderr
    pages = {
        str(page.relative_to(ROOT / "docs").with_suffix(".html")) for page in (ROOT / "docs").rglob("*.md")
    }
    assert pages == {
        str(page.relative_to(tmp_path / "site"))
        for page in (tmp_path / "site").rglob("*.html")
        if page.name != "404.html"
    }
    # What lies outside of docs/ is not on the site: its path is shown.
    assert (
        "examples/own_script_after.py</code>" in (tmp_path / "site/how-to/own-keras-script.html").read_text()
    )


@pytest.mark.parametrize("text", ["[x](nowhere.md)", "[x](how-to/resume.md#no-such-heading)"])
def test_a_dead_link_fails(checkout, text):
    with (checkout / "docs" / "index.md").open("a") as page:
        page.write(f"\n{text}\n")
    assert build(checkout, checkout / "site").returncode != 0


def test_a_page_that_no_list_names_fails(checkout):
    (checkout / "docs" / "how-to" / "forgotten.md").write_text("# Forgotten\n")
    assert build(checkout, checkout / "site").returncode != 0
