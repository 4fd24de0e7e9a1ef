"""The search of tests/unit/test_lease_model.py with a change more."""

from __future__ import annotations

import lease_model
import pytest

RESTARTS = lease_model.training(1, job="47", boot="boot")
FAR = lease_model.training(1, job="", boot="")
NOTHING = lease_model.training(0, job="47", boot="boot")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("stories", "changes"),
    [
        ([RESTARTS, RESTARTS], 3),
        ([FAR, FAR], 3),
        ([NOTHING, RESTARTS], 3),
        ([RESTARTS, RESTARTS, RESTARTS], 2),
        ([NOTHING, NOTHING, RESTARTS], 2),
    ],
)
def test_no_interleaving_has_two_writers(stories, changes):
    number = 0
    for world in lease_model.search(stories, changes):
        number += 1
        assert world.two_writers() is None, f"{world.interleaving}: {world.two_writers()}"
    print(f"{number} interleavings")


@pytest.mark.slow
@pytest.mark.parametrize("find", [lease_model.with_kills, lease_model.with_repeats])
def test_nor_has_one_with_a_start_that_leaves_nothing(find):
    for world in find([NOTHING, RESTARTS], 1):
        assert world.two_writers() is None, f"{world.interleaving}: {world.two_writers()}"
