"""Times and sizes as Slurm's users write them."""

from __future__ import annotations

import pytest
from wording import fails_with

from jobs import quantities
from trainer.errors import JobError


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("90", 90), ("30:00", 30), ("0:30", 1), ("12:00:00", 720), ("1:30:30", 91), ("2-00", 2880),
        ("2-12:30", 3630), ("1-00:00:01", 1441), ("12h", 720), ("1.5h", 90), ("2d", 2880), ("45 min", 45),
    ],
)  # fmt: skip
def test_times(text, minutes):
    assert quantities.minutes(text) == minutes


@pytest.mark.parametrize("text", ["", "0", "-5", "soon", "1:2:3:4", "12 hours", "0:00", "5;id"])
def test_what_is_no_time_is_refused(text):
    with fails_with(JobError):
        quantities.minutes(text)


@pytest.mark.parametrize(
    ("text", "mebibytes"),
    [
        ("4000", 4000),
        ("4000M", 4000),
        ("16G", 16384),
        ("16 GiB", 16384),
        ("1.5g", 1536),
        ("1T", 2**20),
        ("1K", 1),
    ],
)
def test_sizes(text, mebibytes):
    assert quantities.mebibytes(text) == mebibytes


@pytest.mark.parametrize("text", ["", "0", "-1G", "lots", "16 X", "16GG"])
def test_what_is_no_size_is_refused(text):
    with fails_with(JobError):
        quantities.mebibytes(text)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0, "0:00"), (247.4, "4:07"), (43200, "12:00:00"), (183600, "2-03:00:00"), (-3, "0:00")],
)
def test_a_time_is_told_as_squeue_does(seconds, told):
    assert quantities.told(seconds) == told
