"""Networks cut into stages at many places train as one process does, by both schedules and with replicas."""

from __future__ import annotations

import itertools
import json
import os
import random
from pathlib import Path
from typing import Any

import network_cases
import pytest
from conftest import ROOT, Launch

from trainer.planning.placement import staging
from trainer.strategies.placed.reading import read

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]

NETWORKS = ("resattnet18", "unet3d", "densenet121")
SCHEDULES = ("1f1b", "gpipe")
# After ten steps in float64; maxima over windows, and so their gradients, are of float32.
BOUND = 1e-5
# Of cuts into more than two stages, and of cuts of replicas, as many are drawn for each network.
DRAWN = 1
# Of cuts into two, at most so many, at like distances: each takes a quarter of a minute.
PLACES = 3

Cut = list[Any]  # network, schedule, replicas, numbers of the layers that stages begin with


def cuts(network: str, stages: int, replicas: int) -> list[Cut]:
    """Return cuts into two stages at many places, and of others some, by each schedule in turn."""
    places = range(1, len(staging.groups(read(network_cases.small(network), 1))))
    found = list(itertools.combinations(places, stages - 1))
    if (stages, replicas) == (2, 1):
        found = found[:: -(-len(found) // PLACES)]
    elif len(found) > 1:
        found = random.Random(f"{network} {stages} {replicas}").sample(found, DRAWN)
    return [[network, SCHEDULES[at % 2], replicas, list(firsts)] for at, firsts in enumerate(found)]


def trained(launch: Launch, wanted: list[Cut], ranks: int, folder: Path) -> list[Any]:
    """Return of each cut what it was, the largest difference to one process, and its seconds."""
    (folder / "cuts.json").write_text(json.dumps(wanted))
    environment = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "helpers")])}
    outcome = launch(
        ranks if ranks > 1 else 0, "placed_cuts.py", folder / "found.json", folder / "cuts.json",
        environment=environment, timeout=7000,
    )  # fmt: skip
    assert outcome.exit_code == 0, outcome.err
    found: list[Any] = json.loads((folder / "found.json").read_text())
    return found


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("stages, replicas", [(1, 2), (2, 1), (2, 2), (3, 1), (4, 1)])
def test_ten_steps_end_with_the_weights_and_gradients_of_one_process(
    network: str, stages: int, replicas: int, launch: Launch, tmp_path: Path
) -> None:
    wanted = cuts(network, stages, replicas)
    found = trained(launch, wanted, stages * replicas, tmp_path)
    assert [row[:4] for row in found] == wanted
    worst = max(found, key=lambda row: row[4])
    assert worst[4] < BOUND, worst
