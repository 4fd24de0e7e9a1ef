"""The simulator's step of task lists is the runtime's, where every duration is a sleep."""

from __future__ import annotations

import json

import pytest

# It times ranks, so that the gate does not run it: where all cores are busy a sleep ends late.
pytestmark = pytest.mark.slow

SECONDS = 6.0


def test_steps_of_ranks_that_sleep_take_as_long_as_the_simulator_says(tmp_path, launch):
    outcome = launch(2, "slept.py", tmp_path / "found.json", SECONDS)
    assert outcome.exit_code == 0, outcome.err
    found = json.loads((tmp_path / "found.json").read_text())
    assert set(found) == {"spatial", "gpipe", "1f1b"}
    for name, row in found.items():
        # The fastest: what else the machine does makes steps longer, never shorter.
        assert min(row["seconds"]) == pytest.approx(row["simulated"], rel=0.01), (name, row)
    # It is no sum of what the busiest rank does: it waits for the first stage.
    assert found["gpipe"]["simulated"] > 1.05 * SECONDS
