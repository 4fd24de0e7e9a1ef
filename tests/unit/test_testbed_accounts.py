"""The copy of /etc that a testbed's hosts get. What copies is made up: it loses files at will."""

from __future__ import annotations

from pathlib import Path

import pytest
from wording import fails_with

from jobs.testbed import making, programs
from trainer.errors import LauncherError

GONE = "copying /etc: cp ended with 1: cp: cannot stat '/etc/passwd.lock': No such file or directory"


def copying(monkeypatch, *errors: str) -> list[bool]:
    """Let copies fail with these errors in turn, and then succeed; returns what each found in its place."""
    found, left = [], list(errors)

    def run(argv, doing, *, environment):
        etc = Path(argv[-1])
        found.append(etc.exists())
        etc.mkdir(exist_ok=True)
        if left:
            raise LauncherError(left.pop(0))

    monkeypatch.setattr(programs, "run", run)
    return found


def test_a_file_that_is_gone_before_it_is_copied_costs_another_try(tmp_path, monkeypatch):
    found = copying(monkeypatch, GONE, GONE)
    making._copy(tmp_path / "etc", {})
    assert found == [False, False, False] and (tmp_path / "etc").exists()


@pytest.mark.parametrize(("errors", "tries"), [(["cp: No space left on device"], 1), ([GONE] * 9, 5)])
def test_any_other_error_and_the_last_try_are_told(tmp_path, monkeypatch, errors, tries):
    found = copying(monkeypatch, *errors)
    with fails_with(LauncherError):
        making._copy(tmp_path / "etc", {})
    assert len(found) == tries
