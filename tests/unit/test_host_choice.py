"""Which hosts a start gets: spares first, then those that are left."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from wording import fails_with

from jobs.local.attended_files import Terms
from jobs.local.host_watch import TooFewAnswer, choose

NAMES = ("n1", "n2", "n3", "n4")


def terms(**changes) -> Terms:
    given = {"hosts": dict.fromkeys(NAMES, 2), "nodes": 2, "least_nodes": 1, "slots": 2, **changes}
    return Terms("0" * 16, "test", (("true",),), "/", **given)


def nobody(hosts: Sequence[str]) -> Sequence[str]:
    return hosts


def all_answer(hosts: Sequence[str]) -> Sequence[str]:
    return []


def not_asked(hosts: Sequence[str]) -> Sequence[str]:
    raise AssertionError(f"asked about {hosts}")


def test_the_first_hosts_with_room_are_taken_and_others_wait() -> None:
    assert choose(terms(), {}, [], not_asked) == ["n1", "n2"]
    assert choose(terms(), {"n1": 2, "n2": 1}, [], not_asked) == ["n3", "n4"]
    assert choose(terms(), {"n1": 2, "n2": 2, "n3": 2}, [], not_asked) is None
    assert choose(terms(slots=1), {"n1": 1, "n2": 2}, [], not_asked) == ["n1", "n3"]


def test_hosts_with_too_few_slots_are_left_out() -> None:
    assert choose(terms(hosts={"n1": 1, "n2": 2, "n3": 2}), {}, [], not_asked) == ["n2", "n3"]


def test_a_spare_takes_the_place_of_a_lost_host_without_shrinking() -> None:
    assert choose(terms(), {}, ["n1"], not_asked) == ["n2", "n3"]
    # The spare is busy: it is worth waiting for.
    assert choose(terms(nodes=3), {"n4": 2}, ["n1"], not_asked) is None


def test_without_a_spare_a_lost_host_that_answers_again_is_used_last() -> None:
    assert choose(terms(nodes=4), {}, ["n1"], all_answer) == ["n2", "n3", "n4", "n1"]
    with fails_with(TooFewAnswer) as caught:
        choose(terms(nodes=4), {}, ["n1"], nobody)
    assert caught.value.silent == ("n1",)


def test_with_shrink_those_that_are_left_do_down_to_the_least() -> None:
    shrinking = terms(nodes=4, least_nodes=2, shrink=True)
    assert choose(shrinking, {}, ["n1"], nobody) == ["n2", "n3", "n4"]
    assert choose(shrinking, {}, ["n1", "n3"], nobody) == ["n2", "n4"]
    # One is busy with another task: with it there are more.
    assert choose(shrinking, {"n4": 2}, ["n1"], nobody) is None
    with fails_with(TooFewAnswer):
        choose(shrinking, {}, ["n1", "n2", "n3"], nobody)


def test_as_many_are_taken_as_share_the_global_batch_evenly() -> None:
    shrinking = terms(nodes=4, least_nodes=1, shrink=True, global_batch=16)
    assert choose(shrinking, {}, ["n1"], nobody) == ["n2", "n3"]
    assert choose(terms(nodes=4, shrink=True, global_batch=12), {}, ["n1"], nobody) == ["n2", "n3", "n4"]
    # One of two lost hosts answers again; it comes last.
    assert choose(shrinking, {}, ["n1", "n2"], lambda _: ["n2"]) == ["n3", "n4"]
    with pytest.raises(TooFewAnswer):
        choose(terms(nodes=4, least_nodes=3, shrink=True, global_batch=16), {}, ["n1"], nobody)


def test_terms_survive_being_written() -> None:
    agreed = terms(probe=("ssh",), environment={"A": "ü\n"}, minutes=5, shrink=True)
    assert Terms.from_json(agreed.to_json()) == agreed
