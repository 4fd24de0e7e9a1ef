"""No interleaving of two or three starts has two writers, and the search finds one in a broken protocol.

Interleavings of two starts with at most two changes between them, or with a start that is killed or a request
that is repeated and one change; more in tests/whole/test_lease_search.py.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterable

import lease_model
import pytest
from lease_model import Execution, training

from trainer.leases import claims, lease, lease_files

# One restart after the other of a job on one machine; of nobody's job, where nobody sees a process; seen, but
# of no job. `nothing` puts no file, and leaves none.
RESTARTS = training(1, job="47", boot="boot")
FAR = training(1, job="", boot="")
NEAR = training(1, job="", boot="boot")
NOTHING = training(0, job="47", boot="boot")


def broken(found: Iterable[Execution]) -> str | None:
    """The first interleaving with two writers."""
    return next((f"{world.interleaving}: {said}" for world in found if (said := world.two_writers())), None)


def outcomes(found: Iterable[Execution]) -> Counter[tuple[str, ...]]:
    """How often the starts ended how; none of these interleavings has two writers."""
    counted: Counter[tuple[str, ...]] = Counter()
    for world in found:
        assert world.two_writers() is None, f"{world.interleaving}: {world.two_writers()}"
        counted[tuple(world.outcomes[who] for who in sorted(world.outcomes))] += 1
    return counted


def test_a_later_start_of_a_job_takes_over_and_the_earlier_one_is_fenced_off():
    counted = outcomes(lease_model.search([RESTARTS, RESTARTS], 2))
    assert counted.keys() == {("done", "done"), ("Fenced", "done")} and counted.total() > 2000


@pytest.mark.deep
def test_a_start_that_nobody_can_see_is_fenced_off_after_its_silence():
    counted = outcomes(lease_model.search([FAR, FAR], 2))
    assert {("done", "done"), ("Fenced", "done"), ("done", "Fenced")} < counted.keys()


def test_of_two_that_see_each_other_live_one_is_refused():
    counted = outcomes(lease_model.search([NEAR, NEAR], 2))
    assert counted.keys() == {("done", "done"), ("RunError", "done"), ("done", "RunError")}


@pytest.mark.deep
def test_a_start_that_leaves_nothing_takes_no_claim_of_another_away():
    assert outcomes(lease_model.search([NOTHING, RESTARTS], 2)).total() > 2000


@pytest.mark.deep
def test_a_start_may_be_killed_at_any_call():
    counted = outcomes(lease_model.with_kills([RESTARTS, RESTARTS], 1))
    assert {("killed", "done"), ("done", "killed"), ("Fenced", "killed")} == counted.keys()


@pytest.mark.parametrize("first", [RESTARTS, NOTHING])
def test_any_link_or_rename_may_be_repeated(first):
    counted = outcomes(lease_model.with_repeats([first, RESTARTS], 1))
    assert counted.keys() == {("done", "done"), ("Fenced", "done")}


@pytest.mark.parametrize("first", [RESTARTS, NOTHING])
def test_three_starts_have_one_writer(first):
    assert outcomes(lease_model.search([first, RESTARTS, RESTARTS], 1)).total() > 100


def test_a_staging_folder_that_is_renamed_and_not_removed_is_found_to_be_too_little(monkeypatch):
    def rename_only(folder, owner):
        with contextlib.suppress(OSError):
            lease.os.rename(claims.staging_of(folder, owner.token), f"{folder}/.fenced-{owner.token}")

    monkeypatch.setattr(lease_files, "fence_off", rename_only)
    assert broken(lease_model.search([RESTARTS, RESTARTS], 2))


@pytest.mark.deep
def test_a_look_before_each_write_in_place_of_the_fence_is_found_to_be_too_little(monkeypatch):
    def look_and_put(self, source, target):
        if claims.last(self.folder) != self.owner:
            raise self.fenced()
        lease.os.rename(os.fspath(source), os.fspath(target))

    monkeypatch.setattr(lease.Lease, "put", look_and_put)
    monkeypatch.setattr(lease_files, "fence_off", lambda folder, owner: None)
    assert broken(lease_model.search([RESTARTS, RESTARTS], 2))


def test_a_claim_that_takes_the_place_of_another_is_found(monkeypatch):
    def overwrite(source, target):
        with contextlib.suppress(FileNotFoundError):
            lease.os.unlink(target)
        lease.os.link(source, target)
        return True

    monkeypatch.setattr(lease_files, "link", overwrite)
    assert broken(lease_model.search([RESTARTS, RESTARTS], 2))
