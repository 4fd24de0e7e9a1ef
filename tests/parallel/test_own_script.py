"""A user's own Keras script on several ranks."""

from __future__ import annotations

import difflib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Launch

BEFORE, AFTER = ROOT / "examples" / "own_script_before.py", ROOT / "examples" / "own_script_after.py"


def _code(path: Path) -> list[str]:
    """Lines without the docstring, the numbering remarks and blank lines."""
    body = path.read_text().split('"""', 2)[2]
    return [line.split("  # ")[0].rstrip() for line in body.splitlines() if line.strip()]


def _numbers(text: str) -> dict[str, list[float]]:
    """What all ranks print alike."""
    lines = set(re.findall(r"^(?:loss|accuracy)(?: \d\.\d{5}){5}$", text, re.MULTILINE))
    rows = [line.split() for line in lines]
    assert len(rows) == 2, text
    return {row[0]: [float(v) for v in row[1:]] for row in rows}


def test_the_example_changes_five_lines() -> None:
    changed = [line for line in difflib.ndiff(_code(BEFORE), _code(AFTER)) if line.startswith("+ ")]
    assert len(changed) == 5


@pytest.fixture(scope="module")
def before(launch: Launch) -> dict[str, list[float]]:
    """What the example prints before the change."""
    done = launch(0, BEFORE)
    assert done.exit_code == 0, done.err
    return _numbers(done.out)


# 0: without mpirun.
@pytest.mark.parametrize("ranks", [2, *(pytest.param(n, marks=pytest.mark.deep) for n in (0, 1, 4))])
def test_the_example_ends_alike_before_and_after(launch: Launch, before: dict[str, list[float]], ranks: int):
    # Written by each rank at once, at its end: mpirun would mix the words of two ranks' lines.
    after = launch(ranks, AFTER, environment={"PYTHONUNBUFFERED": ""})
    assert after.exit_code == 0, after.err
    assert "warning" not in after.err
    found = _numbers(after.out)
    assert found["loss"] == pytest.approx(before["loss"], abs=2e-5)
    assert found["accuracy"] == pytest.approx(before["accuracy"])


# Of an epoch of 26 samples on three ranks.
STEPS = {"batched": 5, "samples": 3, "unknown_length": 3}


@pytest.fixture(scope="module")
def of_kinds(launch: Launch) -> dict[str, list[dict[str, Any]]]:
    """What each of three ranks finds of a training on each kind of data."""
    outcome = launch(3, "own_script.py", *STEPS)
    assert outcome.exit_code == 0, outcome.err
    found: dict[str, list[dict[str, Any]]] = json.loads(outcome.out.splitlines()[-1])
    return found


@pytest.mark.parametrize("kind", STEPS)
def test_ranks_take_equal_steps_share_metrics_draw_apart_and_stop_together(
    of_kinds: dict[str, list[dict[str, Any]]], kind: str
) -> None:
    of_ranks = of_kinds[kind]
    assert len(of_ranks) == 3
    assert all(facts == of_ranks[0] for facts in of_ranks[1:])
    facts = of_ranks[0]
    assert len(facts["history"]["loss"]) == 2, "the stop takes effect at the end of the epoch, on all ranks"
    # Keras counts the attempt beyond the end of a dataset of unknown length as an iteration, on one rank too.
    assert facts["steps"] == 2 * (STEPS[kind] + (kind == "unknown_length"))
    assert len({tuple(facts["mask"]) for facts in of_kinds["masks"]}) == 3, "dropout differs by rank"
    for name, value in facts["again"].items():
        assert facts["history"][name][-1] == pytest.approx(value, abs=1e-5), name


def test_a_step_of_ones_own_may_update_by_several_optimizers(launch: Launch) -> None:
    weights = []
    for ranks in (0, 2):
        done = launch(ranks, "two_optimizers.py", "first,second")
        assert done.exit_code == 0, done.err
        weights.append(json.loads(done.out.splitlines()[-1]))
    assert weights[1] == pytest.approx(weights[0], abs=1e-12)


def test_an_optimizer_of_several_that_was_not_wrapped_is_named_and_none_that_nobody_chose(launch: Launch):
    done = launch(2, "two_optimizers.py", "first")
    assert done.exit_code == 2
    assert "second (SGD)" in done.err and "RMSprop" not in done.err and "first (" not in done.err


def test_where_keras_was_to_compile_the_step_its_update_is_compiled(launch: Launch) -> None:
    done = launch(2, "compiled_script.py")
    assert done.exit_code == 0, done.err
    plain, compiled = json.loads(done.out.splitlines()[-1])
    assert (plain["compiled"], compiled["compiled"]) == (False, True)
    assert compiled["weights"] == pytest.approx(plain["weights"], rel=1e-4, abs=1e-6)
