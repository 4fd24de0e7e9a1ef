"""Networks divided over real ranks train as plain Keras does, and move between ranks what their plan says."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, Launch
from programs.placed_cases import CASES

pytestmark = pytest.mark.slow

# `make test` has these on two ranks, some on three and four, and some on one, where nothing keeps
# TensorFlow's graph optimizer from what it does wrong; `make test-deep` has each case on two,
# and on one, three or four in turn.
ON_TWO = (
    "tiny filters",
    "mixed at random 0",
    "divided anew",
    "clip norm",
    "compiled",
    "overflow",
    "covariates",
    "small maps",
    "stages",
    "replicas of stages",
    "stages computed again",
    "hypergraph",
    "as many replicas of a hypergraph as take least",
    "moved",
)
ALONE = ("tiny filters", "resattnet18 filters")
ON_MORE = ("tiny filters", "stages", "hypergraph")
GATE = {1: ALONE, 2: ON_TWO, 3: ON_MORE, 4: ON_MORE}
RANKS = (1, 2, 3, 4)
ON_ALL = (*ALONE, *ON_MORE, "moved")
deep = pytest.mark.deep


def on(name: str) -> tuple[int, ...]:
    """Numbers of ranks that train a case."""
    in_turn = (2, (1, 3, 4)[list(CASES).index(name) % 3])
    return CASES[name].ranks or (RANKS if name in ON_ALL else in_turn)


GATED = [
    pytest.param(name, ranks, marks=() if name in GATE[ranks] else deep)
    for ranks in RANKS
    for name in CASES
    if ranks in on(name)
]


def train(launch: Launch, ranks: int, *arguments: object) -> None:
    environment = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "helpers")])}
    outcome = launch(
        ranks if ranks > 1 else 0, "placed.py", *arguments, environment=environment, timeout=3000
    )
    assert outcome.exit_code == 0, outcome.err


def compare(found: Path, expected: Path, bound: float) -> None:
    mine, its = np.load(found), np.load(expected)
    for key in mine.files:
        np.testing.assert_allclose(mine[key], its[key], rtol=bound, atol=bound, err_msg=key)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which a launch leaves what plain Keras ends with, where none before it has."""
    return tmp_path_factory.mktemp("plain")


@pytest.fixture(scope="module")
def trained(
    launch: Launch, asked_for: Callable[..., list[str]], plain: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], Path]:
    """The folder of a number of ranks, which train when they are first asked for: only what is asked for."""

    @functools.cache
    def folder_of(ranks: int) -> Path:
        folder = tmp_path_factory.mktemp(f"ranks_{ranks}")
        moved = asked_for("name", on=ranks)
        names = dict.fromkeys(asked_for("name", ranks=ranks) + moved)
        train(launch, ranks, folder, plain, ",".join(names), *(["0:4"] if moved else []))
        return folder

    return folder_of


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name, ranks", GATED)
def test_any_number_of_ranks_ends_with_the_weights_and_state_of_plain_keras(
    name: str, ranks: int, plain: Path, trained: Callable[[int], Path]
) -> None:
    found = np.load(trained(ranks) / f"{name}.npz")
    expected, start = np.load(plain / f"{name}.npz"), np.load(plain / f"{name}.start.npz")
    assert sorted(expected.files) == sorted(found.files)
    bound = CASES[name].tolerance
    compare(trained(ranks) / f"{name}.npz", plain / f"{name}.npz", bound)
    weights = [key for key in start.files if key.startswith("weight") and "moving" not in key]
    moved = max(float(np.abs(expected[key] - start[key]).max()) for key in weights)
    assert moved > 3 * bound


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name, ranks", GATED)
def test_from_rank_to_rank_move_the_messages_and_bytes_of_the_plan_and_no_more(
    name: str, ranks: int, trained: Callable[[int], Path]
) -> None:
    crossed: dict[str, Any] = json.loads((trained(ranks) / "found.json").read_text())[name]
    if ranks == 1:
        assert crossed["plan"] == [] and crossed["per rank"] == [0]
        return
    for what in ("bytes", "messages"):
        planned = np.zeros((ranks, ranks), int)
        for source, target, kind, count in crossed["plan"]:
            planned[source, target] += count if kind == what else 0
        sent = np.array([one[f"sent {what}"] for one in crossed["ranks"]])
        received = np.array([one[f"received {what}"] for one in crossed["ranks"]]).T
        np.testing.assert_array_equal(sent, planned)
        np.testing.assert_array_equal(received, planned)
        arrived = np.array([one[f"arrived {what}"] for one in crossed["ranks"]]).T
        np.testing.assert_array_equal(arrived, planned)
        if what == "bytes":
            np.testing.assert_array_equal(sent.sum(axis=1), crossed["per rank"])
    if "nothing to do" not in name:
        assert planned.sum() > 0


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name, ranks", [one for one in GATED if "overflow" in one.values[0]])
def test_an_overflow_is_seen_by_all_ranks_which_skip_the_update(
    name: str, ranks: int, plain: Path, trained: Callable[[int], Path]
) -> None:
    # It starts at 2^15 and is halved by one overflow; no other scalar of the state is 2^14.
    for folder in (trained(ranks), plain):
        scales = [v for v in np.load(folder / f"{name}.npz").values() if v.shape == () and v == 2.0**14]
        assert scales, "the scale was not halved"


@deep  # test_placed_runs.py has it of runs
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name, on", [("moved", ranks) for ranks in RANKS])
def test_training_goes_on_from_its_checkpoint_under_other_strategies_and_on_one_rank(
    name: str, on: int, plain: Path, trained: Callable[[int], Path]
) -> None:
    compare(trained(on) / "moved on.npz", plain / f"{name}.npz", CASES[name].tolerance)


@deep
@pytest.mark.timeout(3000)
def test_training_goes_on_from_its_checkpoint_on_other_numbers_of_ranks(
    launch: Launch, plain: Path, tmp_path: Path
) -> None:
    for leg, ranks in enumerate((4, 3, 1, 2)):
        train(launch, ranks, tmp_path, plain, "", f"{leg}:{leg + 1}")
    train(launch, 1, tmp_path, plain, "moved")
    compare(tmp_path / "moved on.npz", plain / "moved.npz", CASES["moved"].tolerance)
