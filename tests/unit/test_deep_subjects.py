"""`make test-deep ABOUT=...`: every test that the gate leaves out belongs to what somebody may change."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LISTS = re.findall(r"^DEEP_(\w+)", (ROOT / "Makefile").read_text(), re.M)
SUBJECTS = [name for name in LISTS if name != "all"]
MARKS = re.compile(r"mark\.(deep|drawn)\b")


def deep_files() -> set[str]:
    """Files with tests that only `make test-deep` runs, or runs for longer; tests/docs as a whole."""
    files = {path for path in (ROOT / "tests").rglob("test_*.py") if MARKS.search(path.read_text())}
    names = {str(path.relative_to(ROOT)) for path in files - {Path(__file__)}}
    return {"tests/docs" if name.startswith("tests/docs/") else name for name in names}


def run_for(subject: str) -> set[str]:
    """The files that pytest would be given."""
    line = ["make", "-n", "test-deep", f"ABOUT={subject}"]
    shown = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout
    return {word for word in shown.split() if word.startswith("tests/")}


@pytest.fixture(scope="module")
def by_subject() -> dict[str, set[str]]:
    return {subject: run_for(subject) for subject in SUBJECTS}


def test_every_test_that_the_gate_leaves_out_is_about_something(by_subject: dict[str, set[str]]) -> None:
    assert set().union(*by_subject.values()) == deep_files()


def test_without_a_subject_all_of_them_are_run() -> None:
    assert run_for("all") == {
        str(Path(name).parent) if name.endswith(".py") else name for name in deep_files()
    }


def test_an_unknown_subject_is_refused_and_the_known_ones_are_named() -> None:
    line = ["make", "-n", "test-deep", "ABOUT=dta"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert f"ABOUT=dta: known are {' '.join(sorted(LISTS))}" in done.stderr


def test_the_table_of_contributing_names_every_subject() -> None:
    table = re.findall(r"^\|.*\| `([a-z]+)`", (ROOT / "CONTRIBUTING.md").read_text(), re.M)
    assert sorted(table) == sorted(SUBJECTS)
