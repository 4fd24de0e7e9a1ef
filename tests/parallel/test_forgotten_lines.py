"""What becomes of a user's script that forgets one or two of the five lines, on two ranks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conftest import Launch

WEIGHTS = "the weights of rank 1 differed from rank 0's"
STATE = "the optimizer state of rank 1 differed from rank 0's"
SAMPLES = "all ranks had the same gradients, bit for bit"
ONCE = "made from rank 0's gradients alone"


@pytest.fixture(scope="module")
def ranks(launch: Launch) -> list[dict[str, Any]]:
    """What each rank found in each case, all of them in one world."""
    outcome = launch(2, "forgotten_lines.py")
    assert outcome.exit_code == 0, outcome.err
    found: list[dict[str, Any]] = json.loads(outcome.out.splitlines()[-1])
    assert len(found) == 2
    return found


def _said(ranks: list[dict[str, Any]], case: str, *expected: str) -> None:
    """Rank 0 has said these warnings and no other, and rank 1 nothing."""
    said = ranks[0][case]["said"]
    assert len(said) == len(expected), (case, said)
    for text, part in zip(said, expected, strict=True):
        assert part in text, (case, text)
    assert ranks[1][case]["said"] == []


def _alike(ranks: list[dict[str, Any]], case: str) -> Any:
    assert ranks[0][case]["weights"] == ranks[1][case]["weights"], case
    return ranks[0][case]["weights"]


@pytest.mark.parametrize(
    "case",
    [
        "fit:adam",
        "graph:sgd",
        "graph:adam",
        "graph:accumulating",
        "graph:scaled",
        "graph:scaled_accumulating",
    ],
)
def test_without_callbacks_and_seed_a_compiled_step_trains_as_plain_keras_does_from_rank_0(
    ranks: list[dict[str, Any]], case: str
) -> None:
    case = f"callbacks:{case}"
    _said(ranks, case, WEIGHTS)
    assert ONCE not in ranks[0][case]["said"][0]
    _alike(ranks, case)
    assert max(rank[case]["apart"] for rank in ranks) < 1e-6


def test_in_an_eager_loop_the_first_update_is_rank_0s_and_the_samples_are_judged_at_the_second(
    ranks: list[dict[str, Any]],
) -> None:
    for case in ("callbacks:eager:adam", "callbacks:eager:later"):
        _said(ranks, case, WEIGHTS)
        assert ONCE in ranks[0][case]["said"][0]
        _alike(ranks, case)
    assert max(rank["callbacks:eager:adam"]["apart"] for rank in ranks) < 1e-6
    _said(ranks, "callbacks+shard:eager", WEIGHTS, SAMPLES)


@pytest.mark.parametrize(
    "case",
    [
        "fit:adam",
        "eager:adam",
        "graph:sgd",
        "graph:accumulating",
        "graph:scaled",
        "graph:scaled_accumulating",
    ],
)
def test_without_shard_the_first_update_warns_once_and_names_it(
    ranks: list[dict[str, Any]], case: str
) -> None:
    _said(ranks, f"shard:{case}", SAMPLES)
    assert "trainer.shard(" in ranks[0][f"shard:{case}"]["said"][0]


def test_without_shard_and_callbacks_both_are_said(ranks: list[dict[str, Any]]) -> None:
    _said(ranks, "callbacks+shard:fit", WEIGHTS, SAMPLES)
    _alike(ranks, "callbacks+shard:fit")


@pytest.mark.parametrize("case", ["optimizer", "optimizer+shard"])
def test_without_the_optimizer_the_callbacks_refuse_to_start(ranks: list[dict[str, Any]], case: str) -> None:
    assert all("trainer.DistributedOptimizer(" in rank[case]["refused"] for rank in ranks)


def test_with_a_seed_and_shares_there_is_nothing_to_say(ranks: list[dict[str, Any]]) -> None:
    _said(ranks, "nothing")
    _alike(ranks, "nothing")


def test_gradients_of_zero_or_infinity_are_no_verdict_on_the_samples(ranks: list[dict[str, Any]]) -> None:
    _said(ranks, "zero, then unlike")
    assert _alike(ranks, "zero, then unlike") == pytest.approx(1 - 0.1 * 1.5 - 0.1 * 1.0)
    _said(ranks, "zero and infinite, then alike", SAMPLES)


def test_optimizer_state_that_differs_becomes_rank_0s(ranks: list[dict[str, Any]]) -> None:
    _said(ranks, "state", STATE)
    assert _alike(ranks, "state") == pytest.approx(1 - 0.1 * 1.5)


def test_gradients_taken_outside_of_a_compiled_update_at_unlike_weights_are_refused(
    ranks: list[dict[str, Any]],
) -> None:
    assert all("trainer.broadcast(model)" in rank["outside"]["refused"] for rank in ranks)


def test_ranks_with_different_networks_are_refused(ranks: list[dict[str, Any]]) -> None:
    assert all("network of rank 1 has other weights" in rank["networks"]["refused"] for rank in ranks)


def test_broadcast_gives_a_loop_of_ones_own_equal_weights_frozen_ones_too(
    ranks: list[dict[str, Any]],
) -> None:
    _said(ranks, "broadcast")
    _alike(ranks, "broadcast")


@pytest.mark.parametrize("kind", ["trains", "predicts", "fails"])
def test_a_training_that_reduced_nothing_is_told_at_its_end_and_nothing_else_is(
    launch: Launch, kind: str
) -> None:
    outcome = launch(2, "ends_without_reduction.py", kind)
    told = outcome.err.count("nothing was averaged over them")
    if kind == "trains":
        assert (outcome.exit_code, told) == (0, 1), outcome.err
        assert "trainer.DistributedOptimizer(" in outcome.err
    elif kind == "predicts":
        assert (outcome.exit_code, told) == (0, 0), outcome.err
    else:
        assert (outcome.exit_code, told) == (1, 0), outcome.err
        assert "the cause of it all" in outcome.err
