"""What MPI and Horovod read at their start: asked for, or the site's, or our default, in that order."""

from __future__ import annotations

import os

import pydantic
import pytest

from trainer.config.strategy import RingConfig
from trainer.ranks import launch
from trainer.strategies import ring

ALLREDUCE = "OMPI_MCA_coll_tuned_allreduce_algorithm"


@pytest.fixture
def applied(monkeypatch):
    """Settings after a launch with these options, on a site with these variables."""

    def apply(ring: RingConfig, **site: str) -> dict[str, str]:
        with monkeypatch.context() as patch:
            patch.setattr(os, "environ", dict(site))
            launch.apply_settings(launch.ring_environment(ring))
            return dict(os.environ)

    return apply


def test_options_left_alone_set_nothing():
    assert launch.ring_environment(RingConfig()) == {}


def test_a_site_wins_over_our_default_and_what_was_asked_for_wins_over_the_site(applied):
    assert applied(RingConfig())[ALLREDUCE] == "4"
    assert applied(RingConfig(), **{ALLREDUCE: "3"})[ALLREDUCE] == "3"
    assert applied(RingConfig(algorithm="ring"), **{ALLREDUCE: "3"})[ALLREDUCE] == "4"
    assert applied(RingConfig(algorithm="tree"), **{ALLREDUCE: "3"})[ALLREDUCE] == "2"


def test_no_two_algorithms_are_told_to_mpi_alike():
    told = [tuple(sorted(settings.items())) for settings in launch.ALGORITHMS.values()]
    assert len(set(told)) == len(told) == 6


def test_horovods_settings_have_horovods_units():
    asked = RingConfig(fusion_mb=0.5, cycle_ms=2.5, autotune=True, timeline=True)
    environment = launch.ring_environment(asked)
    assert environment.pop("HOROVOD_AUTOTUNE_LOG").endswith(".csv")
    assert environment == {
        "HOROVOD_FUSION_THRESHOLD": "524288",
        "HOROVOD_CYCLE_TIME": "2.5",
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_HIERARCHICAL_ALLGATHER": "0",
        "HOROVOD_TIMELINE": "DYNAMIC",
    }
    assert launch.ring_environment(RingConfig(fusion_mb=0))["HOROVOD_FUSION_THRESHOLD"] == "0"


def test_mpi_is_taken_at_its_word():
    tree = RingConfig(algorithm="tree")
    found = {
        "coll_tuned_use_dynamic_rules": 1,
        "coll_tuned_allreduce_algorithm": 2,
        "coll_tuned_reduce_algorithm": 5,
        "coll_tuned_bcast_algorithm": 6,
    }
    assert ring.differing(tree, found) == []
    assert ring.differing(tree, {**found, "coll_tuned_allreduce_algorithm": 4}) == [
        "coll_tuned_allreduce_algorithm is 4, not 2"
    ]
    assert ring.differing(tree, {**found, "coll_tuned_use_dynamic_rules": 0})
    assert ring.differing(RingConfig(), {})  # an MPI that does not say


def test_bfloat16_has_a_route_of_its_own():
    with pytest.raises(pydantic.ValidationError, match="all-to-all"):
        RingConfig(compression="bfloat16", algorithm="tree")
    RingConfig(compression="bfloat16", algorithm="gather")
