"""The reference pages that are made from code say what the code says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "reference_pages.py"
SPEC = importlib.util.spec_from_file_location("reference_pages", TOOL)
assert SPEC is not None and SPEC.loader is not None
pages = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(pages)


@pytest.mark.parametrize("name", pages.MADE)
def test_a_page_is_current(name):
    stored = (pages.PAGES / name).read_text()
    assert stored == pages.MADE[name](), "out of date: .venv/bin/python tools/reference_pages.py"


def test_every_key_of_the_configuration_has_a_row_and_a_description():
    page = pages.config_page()
    for key, field in pages.config.fields():
        if pages.config.section_of(field.annotation) is None:
            assert field.description, key
            assert f"| `{key.rpartition('.')[2]}` |" in page
        else:
            assert f"## `{key}`" in page


def test_every_command_is_on_the_page_with_an_example():
    page = pages.commands_page()
    for name in pages.commands():
        section = page.split(f"## cingulum {name}\n")[1].split("\n## ")[0]
        assert "Example:" in section
        assert "Usage: cingulum" in section
