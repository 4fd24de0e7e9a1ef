"""What each rank of a divided network keeps in memory is what was predicted of it."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.slow

# TensorFlow takes its tensors from `malloc`, which counts blocks of so many bytes and more one by one.
ENVIRONMENT = {"TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "1", "MALLOC_MMAP_THRESHOLD_": "16384"}
NETWORKS = ("resnet18", "unet", "vgg")
ALL = [(network, strategy) for network in NETWORKS for strategy in ("spatial", "filters")]


def is_as_predicted(launch, path, ranks, pairs):
    given = [word for pair in pairs for word in pair]
    outcome = launch(ranks, "placed_memory.py", path, *given, environment=ENVIRONMENT, timeout=400)
    assert outcome.exit_code == 0, outcome.err
    found = json.loads(path.read_text())
    assert len(found) == max(1, ranks) * len(pairs)
    for row in found:
        (variables, counted), (kept, seen), (most, grown) = row["state"], row["kept"], row["most"]
        assert variables == counted, row
        assert kept == pytest.approx(seen, rel=0.05), row
        # An estimate: what a process takes from the system depends on what it has got back before.
        assert 0.85 * grown < most < 1.5 * grown, row


def test_parameters_and_activations_on_two_ranks_are_those_that_were_predicted(tmp_path, launch):
    pairs = [("resnet18", "spatial"), ("unet", "filters"), ("vgg", "spatial")]
    is_as_predicted(launch, tmp_path / "found.json", 2, pairs)


@pytest.mark.deep
@pytest.mark.parametrize("ranks", [0, 2, 4])
def test_they_are_for_every_network_strategy_and_number_of_ranks(tmp_path, launch, ranks):
    is_as_predicted(launch, tmp_path / "found.json", ranks, ALL)
