"""A part of an outcome that fails is one line, and never more than that."""

from __future__ import annotations

import errno
import signal
import time

import pytest

from trainer.atomic import write_text
from trainer.attempts import attempt
from trainer.errors import Fenced, ImageError


def said_of(make, **options) -> list[str]:
    """What is told of a part that fails."""
    lines: list[str] = []
    assert not attempt("page.html", make, remedy="cingulum report RUN", note=lines.append, **options)
    return lines


def raising(error: BaseException):
    def make() -> None:
        raise error

    return make


def test_a_part_that_is_made_says_nothing(tmp_path):
    lines: list[str] = []
    assert attempt(
        "a file", lambda: write_text(tmp_path / "a", "b"), remedy="", note=lines.append, limit_s=60
    )
    assert lines == [] and (tmp_path / "a").read_text() == "b"


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (ZeroDivisionError("by zero\nand more"), "ZeroDivisionError: by zero, test_attempts.py:"),
        (MemoryError(), "MemoryError, test_attempts.py:"),
        (ImageError("scan.nii: is empty.\n  Copy it again."), "(scan.nii: is empty)"),
        (OSError(errno.EACCES, "Permission denied", "figures"), "(figures: Permission denied)"),
    ],
)  # fmt: skip
def test_an_error_of_any_kind_is_one_line_with_its_reason_and_the_command(error, why):
    (line,) = said_of(raising(error))
    assert line.startswith("warning: page.html could not be made (") and why in line
    assert line.endswith("; all that was computed is kept. To make it: cingulum report RUN")
    assert "\n" not in line


@pytest.mark.parametrize("error", [Fenced("another start writes"), KeyboardInterrupt()])
def test_what_ends_the_process_is_no_failure_of_a_part(error):
    with pytest.raises(type(error)):
        attempt("page.html", raising(error), remedy="", note=pytest.fail)


def test_a_part_whose_time_is_up_is_given_up_even_where_it_catches_every_error_and_waits():
    ended = []

    def slow() -> None:
        try:
            time.sleep(60)
        except Exception:
            ended.append("caught")
        finally:
            ended.append("left")

    before = signal.getsignal(signal.SIGVTALRM)
    assert "(it took longer than 0.2 s)" in said_of(slow, limit_s=0.2)[0]
    assert ended == ["left"] and signal.getsignal(signal.SIGVTALRM) is before
