"""Every page of the documentation: its blocks say what they are, and its links lead somewhere."""

from __future__ import annotations

import re

import pytest
from pages import FENCE, LINK, PAGES, ROOT

# A file of the repository, as pages name it: `jobs/mpi.py`, `benchmarks/*_page.py`, `trainer/forecast/`.
PATH = re.compile(
    r"`((?:cingulum|trainer|jobs|tests|tools|benchmarks|docker|slurm|examples|docs)/[\w./*-]*[\w/])(?:::\w+)?`"
)
# In the folder of a user's jobs, not of the repository.
ELSEWHERE = ("jobs/TOKEN/",)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_links_of_a_page_lead_somewhere(page):
    for target in (match["target"] for match in LINK.finditer(page.read_text())):
        if not target.startswith(("http://", "https://", "#", "mailto:")):
            path = page.parent / target.split("#")[0]
            assert path.exists(), f"{page.relative_to(ROOT)}: {target} is not there"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_block_of_a_page_says_what_it_is(page):
    """A command in a block without a language would go unnoticed, and unrun."""
    for match in FENCE.finditer(page.read_text()):
        assert match["language"], f"{page.relative_to(ROOT)}: a block without a language:\n{match['body']}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_files_of_the_repository_that_a_page_names_are_there(page):
    named = {match[1] for match in PATH.finditer(page.read_text())}
    gone = {path for path in named if path not in ELSEWHERE and not list(ROOT.glob(path))}
    assert not gone, f"{page.relative_to(ROOT)} names {sorted(gone)}"
