"""Guards, and errors in a script that is not `cingulum train`: all ranks end, the cause comes first."""

from __future__ import annotations

import pytest
from conftest import Launch, Outcome

BOUND_S = 60  # start-up of TensorFlow on a busy machine included; the end itself takes seconds


def _ended(outcome: Outcome, first_words: str) -> str:
    assert outcome.exit_code != 0
    assert "went on to the end" not in outcome.out
    assert outcome.seconds < BOUND_S
    # TensorFlow's own remarks at its start come from its library, before any of our code runs.
    remarks = ("WARNING: All log messages", "I0000 ")
    said = [line for line in outcome.err.splitlines() if line.strip() and not line.startswith(remarks)]
    assert said[0].startswith(first_words), outcome.err
    return "\n".join(said)


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.deep), 1])
def test_a_rank_that_raises_ends_the_others_with_its_message_first(launch: Launch, rank: int) -> None:
    text = _ended(launch(2, "faults.py", "raises", rank), f"[rank {rank} @ ")
    assert "Traceback" in text.splitlines()[0]
    assert "ValueError: the cause of it all" in text
    assert f"[rank {1 - rank} @ " not in text.split("the cause of it all")[0]


def test_a_bad_input_on_one_rank_is_one_message_without_a_traceback(launch: Launch) -> None:
    outcome = launch(2, "faults.py", "refuses", 1)
    text = _ended(outcome, "[rank 1 @ ")
    assert "error: one volume is bad." in text.splitlines()[0]
    assert "Traceback" not in text.split("MPI_ABORT")[0]
    assert outcome.exit_code == 2


def test_a_broken_reduction_is_seen_by_the_divergence_guard(launch: Launch) -> None:
    text = _ended(launch(3, "faults.py", "skips_a_reduction", 1), "[rank ")
    assert "no longer hold the same weights: rank 1 of 3" in text
    assert "first variable that differs is" in text


def test_a_nan_on_one_rank_stops_all_and_names_what_is_not_finite(launch: Launch) -> None:
    text = _ended(launch(2, "faults.py", "has_nan", 1), "[rank ")
    assert "no longer a finite number" in text
    assert "at step 5" in text


def test_an_optimizer_that_was_not_wrapped_is_refused(launch: Launch) -> None:
    text = _ended(launch(2, "faults.py", "forgets_to_wrap", 0), "[rank ")
    assert "every rank would train a network of its own" in text
    assert "trainer.DistributedOptimizer" in text
