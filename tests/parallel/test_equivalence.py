"""Ranks that share a global batch end with the weights of plain Keras in one process."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Launch, run
from programs.cases import CASES

pytestmark = pytest.mark.slow

RANKS = (1, 2, 3, 4)
# `make test` has these on all numbers of ranks, and on three ranks every case but those that others contain.
ON_ANY = ("float64", "float64_gather", "noise_float64", "global_clip_norm")
CONTAINED = (
    *("sgd", "momentum", "adam", "clip_norm", "weight_decay", "accumulation", "ema"),
    *("sync_batch_norm", "noise", "bfloat16", "loss_scale", "compiled"),
    *("passes_whole", "passes_buckets"),  # on one rank: tests/unit/test_compiled_passes.py
)
GATED = [
    pytest.param(
        name,
        ranks,
        marks=() if name in ON_ANY or (ranks == 3 and name not in CONTAINED) else pytest.mark.deep,
    )
    for ranks in RANKS
    for name in CASES
]
# Difference of the weights over the length of the way from the first weights, after each of three steps.
BOUNDS: dict[str, dict[str, float]] = {
    "tiny": {"float64": 1e-12, "float32": 1e-4},
    "resattnet18": {"float64": 1e-12, "float32": 1e-4},
}


@pytest.fixture(scope="module")
def plain(
    launch: Launch, asked_for: Callable[..., list[str]], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    names = [name for name in asked_for("name") if name in CASES]  # others are networks'
    outcome = launch(0, "plain_keras.py", folder, ",".join(names))
    assert outcome.exit_code == 0, outcome.err
    return folder


@pytest.fixture(scope="module")
def shared(
    launch: Launch, asked_for: Callable[..., list[str]], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], Path]:
    """The folder of a number of ranks, which train when they are first asked for: only what is asked for."""

    @functools.cache
    def folder_of(ranks: int) -> Path:
        folder = tmp_path_factory.mktemp(f"ranks_{ranks}")
        names = [name for name in asked_for("name", ranks=ranks) if name in CASES]  # others are networks'
        outcome = launch(ranks, "distributed.py", folder, ",".join(names))
        assert outcome.exit_code == 0, outcome.err
        return folder

    return folder_of


@pytest.mark.parametrize("name, ranks", GATED)
def test_any_number_of_ranks_ends_with_the_weights_of_plain_keras(
    name: str, ranks: int, plain: Path, shared: Callable[[int], Path]
) -> None:
    expected, found = np.load(plain / f"{name}.npz"), np.load(shared(ranks) / f"{name}.npz")
    assert sorted(expected.files) == sorted(found.files)
    for key in expected.files:
        np.testing.assert_allclose(found[key], expected[key], rtol=0, atol=CASES[name].tolerance, err_msg=key)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.deep] * (name in CONTAINED)) for name in CASES]
)
def test_training_moves_the_weights_far_beyond_the_tolerance(name: str, plain: Path) -> None:
    start, end = np.load(plain / f"{name}.start.npz"), np.load(plain / f"{name}.npz")
    moved = max(float(np.abs(end[k] - start[k]).max()) for k in start.files if k.startswith("weight"))
    assert moved > 10 * CASES[name].tolerance


@pytest.mark.parametrize("ranks", RANKS)
def test_all_ranks_end_with_the_same_bytes(ranks: int, shared: Callable[[int], Path]) -> None:
    hashes = json.loads((shared(ranks) / "hashes.json").read_text())
    assert set(ON_ANY) <= set(hashes)
    for name, of_ranks in hashes.items():
        assert len(of_ranks) == ranks
        assert len(set(of_ranks)) == 1, name


def test_an_overflow_on_one_rank_makes_all_skip_the_step(plain: Path, shared: Callable[[int], Path]) -> None:
    # It starts at 128 and is halved by one overflow; no other scalar of the state is 64.
    for name in (
        "loss_scale_overflow",
        "loss_scale_accumulation_overflow",
        "compiled_loss_scale_overflow",
    ):
        scales = [v for v in np.load(shared(3) / f"{name}.npz").values() if v.shape == () and v == 64.0]
        assert scales, f"{name}: the scale was not halved"


@pytest.fixture(scope="module")
def study() -> Callable[[str, int], dict[str, Any]]:
    """What `benchmarks/rounding_growth.py` says of a network and a batch of 15 on so many ranks."""

    @functools.cache
    def of_ranks(name: str, ranks: int) -> dict[str, Any]:
        line = [sys.executable, "benchmarks/rounding_growth.py", "--json", "--networks", name]
        options = f"--batch 15 --worlds {ranks} --edge 16 --steps 3 --rates 0.01"
        outcome = run([*line, *options.split()])
        assert outcome.exit_code == 0, outcome.err
        row: dict[str, Any] = json.loads(outcome.out)[0]
        return row

    return of_ranks


@pytest.mark.parametrize("ranks", [3, pytest.param(5, marks=pytest.mark.deep)])
@pytest.mark.parametrize("name", ["tiny", pytest.param("resattnet18", marks=pytest.mark.deep)])
def test_registered_networks_are_those_of_plain_keras_in_float64_and_as_near_as_rounding_lets_them_in_float32(
    name: str, ranks: int, study: Callable[[str, int], dict[str, Any]]
) -> None:
    row, bounds = study(name, ranks), BOUNDS[name]
    for precision in ("float64", "float32"):
        assert max(row[precision][f"{ranks} ranks"]) < bounds[precision], precision
        # Another order of sums in one process is no nearer: the study does compare two trainings.
        assert min(row[precision]["other order"]) > 0, precision
