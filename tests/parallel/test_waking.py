"""Horovod's thread sleeps until there is something to reduce, and ranks keep to their own cores."""

import json

import pytest

# Between two negotiations Horovod's thread sleeps for so many ms, unless something wakes it.
CYCLE_MS = 500


@pytest.mark.parametrize(("idle_ms", "wakes"), [(5000, True), (0, False)])
def test_a_collective_wakes_the_thread_that_sleeps(launch, idle_ms, wakes):
    settings = {"HOROVOD_CYCLE_TIME": str(CYCLE_MS), "HOROVOD_IDLE_CYCLE_TIME": str(idle_ms)}
    outcome = launch(2, "waking.py", environment=settings)
    assert outcome.exit_code == 0, outcome.err
    seconds = float(outcome.out.splitlines()[-1])
    # Four collectives: without waking up each waits for the end of a cycle.
    assert (seconds < 1.0) if wakes else (seconds > 1.2)


@pytest.mark.parametrize(("site", "apart"), [({}, True), ({"CINGULUM_BIND": "none"}, False)])
def test_ranks_that_share_all_cores_of_a_host_keep_apart(launch, site, apart):
    outcome = launch(2, "own_cores.py", environment=site)
    assert outcome.exit_code == 0, outcome.err
    found = json.loads(outcome.out.splitlines()[-1])
    first, second = (set(rank["after"]) for rank in found)
    before = set(found[0]["before"])
    if apart and len(before) >= 2:
        assert first | second == before and not first & second
        # Horovod's and TensorFlow's threads start afterwards.
        assert all(set(cores) <= set(rank["after"]) for rank in found for cores in rank["later_threads"])
        assert all(rank["later_threads"] for rank in found)
        # NumPy's BLAS was loaded before, with a thread for each core of the host.
        assert all(0 < max(rank["blas_threads"]) <= len(rank["after"]) for rank in found)
    else:
        assert first == second == before
