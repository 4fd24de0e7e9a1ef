"""Ranks that share a global batch end with the weights of plain Keras in one process."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import Launch
from programs.cases import CASES

# `make test` has two of them, `make test-deep` the others.
RANKS = tuple(pytest.param(n, marks=pytest.mark.deep) if n in (1, 3) else n for n in (1, 2, 3, 4))


@pytest.fixture(scope="module")
def plain(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    outcome = launch(0, "plain_keras.py", folder)
    assert outcome.exit_code == 0, outcome.err
    return folder


@pytest.fixture(scope="module")
def shared(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """The folder of a number of ranks, which train when they are first asked for."""

    @functools.cache
    def folder_of(ranks: int) -> Path:
        folder = tmp_path_factory.mktemp(f"ranks_{ranks}")
        outcome = launch(ranks, "distributed.py", folder)
        assert outcome.exit_code == 0, outcome.err
        return folder

    return folder_of


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", CASES)
def test_any_number_of_ranks_ends_with_the_weights_of_plain_keras(
    name: str, ranks: int, plain: Path, shared: Callable[[int], Path]
) -> None:
    expected, found = np.load(plain / f"{name}.npz"), np.load(shared(ranks) / f"{name}.npz")
    assert sorted(expected.files) == sorted(found.files)
    for key in expected.files:
        np.testing.assert_allclose(found[key], expected[key], rtol=0, atol=CASES[name].tolerance, err_msg=key)


@pytest.mark.parametrize("name", CASES)
def test_training_moves_the_weights_far_beyond_the_tolerance(name: str, plain: Path) -> None:
    start, end = np.load(plain / f"{name}.start.npz"), np.load(plain / f"{name}.npz")
    moved = max(float(np.abs(end[k] - start[k]).max()) for k in start.files if k.startswith("weight"))
    assert moved > 10 * CASES[name].tolerance


@pytest.mark.parametrize("ranks", RANKS)
def test_all_ranks_end_with_the_same_bytes(ranks: int, shared: Callable[[int], Path]) -> None:
    hashes = json.loads((shared(ranks) / "hashes.json").read_text())
    assert set(hashes) == set(CASES)
    for name, of_ranks in hashes.items():
        assert len(of_ranks) == ranks
        assert len(set(of_ranks)) == 1, name


def test_an_overflow_on_one_rank_makes_all_skip_the_step(plain: Path, shared: Callable[[int], Path]) -> None:
    # It starts at 128 and is halved by one overflow; no other scalar of the state is 64.
    for name in ("loss_scale_overflow", "loss_scale_accumulation_overflow"):
        scales = [v for v in np.load(shared(4) / f"{name}.npz").values() if v.shape == () and v == 64.0]
        assert scales, f"{name}: the scale was not halved"
