"""A model card shows the names of a study as they are, whatever Markdown makes of their characters."""

from __future__ import annotations

import html
import re

import jinja2
import pytest
from markdown_it import MarkdownIt

from trainer.export.card import code_span, escaped

NAMES = [
    "A|B", "*bold*", "_under_", "in_word_s", "<img src=x onerror=alert(1)>", "[link](http://x)", "![i](x)",
    "`code`", "``", "# title", "- item", "+ item", "1. item", "12) item", "&amp;", "a\\|b", "~~gone~~",
    "$x^2$", "plain", "<!-- hidden -->", "two\nlines", "\\", "trailing\\", "***", "===", "> quote",
]  # fmt: skip


def rendered(markdown: str) -> str:
    return MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(markdown)


def texts(page: str) -> list[str]:
    return [html.unescape(part) for part in re.findall(r">([^<\n]+)<", page)]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_shown_as_it_is_in_lines_titles_and_tables(name):
    plain = " ".join(name.split()) if "\n" in name else name
    environment = jinja2.Environment(finalize=escaped, autoescape=False)  # noqa: S701
    environment.filters["code"] = code_span
    table = "| a | b |\n| --- | --- |\n| {{ n }} | {{ 2 }} |\n"
    card = "# {{ n }}\n\n{{ n }}\n\nSaid {{ n }}.\n\n{{ n | code }}\n\n" + table
    page = rendered(environment.from_string(card).render(n=name))
    assert texts(page) == [plain, plain, f"Said {plain}.", plain, "a", "b", plain, "2"]
    made = set(re.findall(r"<([a-z0-9]+)", page))
    assert made == {"h1", "p", "code", "table", "thead", "tbody", "tr", "th", "td"}


def test_numbers_and_what_is_markdown_already_stay():
    environment = jinja2.Environment(finalize=escaped, autoescape=False)  # noqa: S701
    shown = environment.from_string("{{ -0.5 }} {{ 3 }} {{ none }} {{ d | tojson }}").render(d={"a_b": "*"})
    assert shown == '-0.5 3 None {"a_b": "*"}'
