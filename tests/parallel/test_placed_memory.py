"""What each rank of a divided network keeps in memory is what was predicted of it."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.slow

# TensorFlow takes its tensors from `malloc`, which counts blocks of so many bytes and more one by one.
ENVIRONMENT = {"TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "1", "MALLOC_MMAP_THRESHOLD_": "8192"}
# Of so few bytes a process takes more for other things.
LITTLE = 16 * 2**20
PAIRS = [
    ("resnet18", "spatial"), ("unet", "filters"), ("vgg", "spatial"),
    ("vgg of 4", "1f1b"), ("vgg of 4", "gpipe"), ("vgg of 4", "gpipe again"), ("vgg of 4", "1f1b again"),
]  # fmt: skip


def measured(launch, ranks, path, pairs):
    given = [word for pair in pairs for word in pair]
    outcome = launch(ranks, "placed_memory.py", path, *given, environment=ENVIRONMENT)
    assert outcome.exit_code == 0, outcome.err
    found = json.loads(path.read_text())
    assert len(found) == ranks * len(pairs)
    return found


def check(found):
    for row in found:
        (variables, counted), (kept, seen) = row["state"], row["kept"]
        assert variables == counted, row
        # Which of the messages that may come early have come depends on which rank is slower.
        assert 0.95 * kept < seen < 1.05 * (kept + row["early"]), row


def test_parameters_and_activations_on_two_ranks_are_those_that_were_predicted(tmp_path, launch):
    found = measured(launch, 2, tmp_path / "found.json", PAIRS)
    check(found)
    for row in found:
        most, grown = row["most"]
        # An estimate: what a process takes from the system depends on what it has got back before.
        assert 0.85 * grown < most < 1.5 * grown or grown < LITTLE, row
    # Of four micro-batches under `gpipe`, the first rank then has the activations of one at a time.
    grown, again = (
        next(row["most"][1] for row in found if row["strategy"] == strategy and row["rank"] == 0)
        for strategy in ("gpipe", "gpipe again")
    )
    assert again < grown / 2


def test_every_stage_of_four_keeps_what_was_predicted_and_messages_in_flight(tmp_path, launch):
    found = measured(launch, 4, tmp_path / "found.json", [("vgg of 4", "1f1b"), ("vgg of 4", "gpipe")])
    check(found)
    # The first stage may do one more micro-batch than the second, which gets 8 x 64^3 numbers of it early.
    early = {row["rank"]: row["early"] for row in found if row["strategy"] == "1f1b"}
    assert early[1] >= 4 * 8 * 64**3
