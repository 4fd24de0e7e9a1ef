"""What the form shows of a plan: `cingulum plan` in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_runs import write_config
from wording import fails_with

from cingulum.service import outlooks
from trainer.errors import JobError


def test_a_plan_is_told_and_so_is_why_there_is_none(tmp_path, monkeypatch):
    config = write_config(tmp_path, Path("shards"), "mine", model={"name": "small", "width": 2})
    with fails_with(JobError):
        outlooks.of(config, ["--out=x"], 2)  # a change, never an option
    assert not Path("x").exists()
    with fails_with(JobError):
        outlooks.of(config, [], 2)
    monkeypatch.setattr(outlooks, "LIMIT_S", 0.01)
    with fails_with(JobError):
        outlooks.of(config, [], 2)
    with outlooks._ONE, pytest.raises(outlooks.BusyError):
        outlooks.of(config, [], 2)
