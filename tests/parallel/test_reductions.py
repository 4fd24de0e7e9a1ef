"""Every way to reduce gradients: the weights of one process, over the route that was asked for."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Launch

RANKS = 4
# Each with options of Horovod besides, which change no weight either.
WAYS: dict[str, dict[str, Any]] = {
    "segmented-ring": {},
    "recursive-doubling": {"autotune": True},
    "tree": {"timeline": True, "fusion_mb": 0, "reduction": "per_tensor"},
    "reduce-broadcast": {"timeline": True, "cycle_ms": 20, "reduction": "per_tensor"},
    "gather": {},
}
# Times the gradients that each rank sends on its three busiest connections, busiest rank first.
SENT = {
    "segmented-ring": [[1.5, 0, 0]] * 4,  # 2(n-1)/n to one neighbour
    "recursive-doubling": [[1, 1, 0]] * 4,  # all of it to log2(n) partners
    "tree": [[1, 1, 0], [1, 1, 0], [1, 0, 0], [1, 0, 0]],
    "reduce-broadcast": [[1, 1, 1], [1, 0, 0], [1, 0, 0], [1, 0, 0]],
    "gather": [[1, 1, 1], [1, 0, 0], [1, 0, 0], [1, 0, 0]],
}


@dataclass(frozen=True)
class Trained:
    report: dict[str, Any]
    weights: dict[str, np.ndarray]
    folder: Path


def _train(launch: Launch, folder: Path, ranks: int, **options: Any) -> Trained:
    environment = {
        "OMPI_MCA_btl": "tcp,self",
        # A site's choice, which the run's wins over.
        "OMPI_MCA_coll_tuned_allreduce_algorithm": "4",
        # So that autotuning comes to something within 20 steps.
        "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "0",
        "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "1",
    }
    outcome = launch(ranks, "reduce_every_way.py", folder, json.dumps(options), environment=environment)
    assert outcome.exit_code == 0, outcome.err
    report = json.loads(outcome.out.splitlines()[-1])
    return Trained(report, dict(np.load(folder / "weights.npz")), folder)


@pytest.fixture(scope="module")
def alone(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return _train(launch, tmp_path_factory.mktemp("alone"), 0)


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def shared(way: str, launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return _train(launch, tmp_path_factory.mktemp(way), RANKS, algorithm=way, **WAYS[way])


def test_every_way_ends_with_the_weights_of_one_process(alone: Trained, shared: Trained) -> None:
    assert shared.report["same_on_every_rank"]
    assert alone.report["moved"] > 0.1
    for name, weight in alone.weights.items():
        np.testing.assert_allclose(shared.weights[name], weight, rtol=0, atol=2e-5, err_msg=name)


def test_mpi_takes_the_route_that_was_asked_for(way: str, shared: Trained) -> None:
    assert shared.report["differing"] == []
    assert shared.report["mean"] == [2.5]
    payload = shared.report["payload"]
    # Horovod's own messages while ranks wait add a per cent or two.
    sent = sorted(([round(n / payload, 1) for n in rank[:3]] for rank in shared.report["sent"]), reverse=True)
    assert sent == SENT[way]


def test_horovod_took_its_settings(way: str, shared: Trained) -> None:
    found = shared.report["horovod"]
    options = WAYS[way]
    if options.get("autotune"):
        header, *rows = found["autotune"].splitlines()
        assert header.endswith("cycle_time_ms,tensor_fusion_threshold,score") and rows
        assert all(row.split(",")[1].strip() == "0" for row in rows)
    if "fusion_mb" in options:
        assert "MPI_ALLREDUCE" in found["activities"]
        assert "MEMCPY_IN_FUSION_BUFFER" not in found["activities"]
    if "cycle_ms" in options:
        assert found["cycle_ms"] >= 0.99 * options["cycle_ms"]
        assert "MEMCPY_IN_FUSION_BUFFER" in found["activities"]
