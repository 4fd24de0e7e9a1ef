"""Every page of the documentation: its blocks say what they are, and its links lead somewhere."""

from __future__ import annotations

import pytest
from pages import FENCE, LINK, PAGES, ROOT


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
