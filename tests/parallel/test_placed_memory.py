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


def test_parameters_and_activations_on_two_ranks_are_those_that_were_predicted(tmp_path, launch):
    path, given = tmp_path / "found.json", [word for pair in PAIRS for word in pair]
    outcome = launch(2, "placed_memory.py", path, *given, environment=ENVIRONMENT)
    assert outcome.exit_code == 0, outcome.err
    found = json.loads(path.read_text())
    assert len(found) == 2 * len(PAIRS)
    for row in found:
        (variables, counted), (kept, seen), (most, grown) = row["state"], row["kept"], row["most"]
        assert variables == counted, row
        # What a stage sent in the end of the step before may be let go of only in this one.
        assert kept == pytest.approx(seen, rel=0.05, abs=row["leaving"]), row
        # An estimate: what a process takes from the system depends on what it has got back before.
        assert 0.85 * grown < most < 1.5 * grown or grown < LITTLE, row
    # Of four micro-batches under `gpipe`, the first rank then has the activations of one at a time.
    grown, again = (
        next(row["most"][1] for row in found if row["strategy"] == strategy and row["rank"] == 0)
        for strategy in ("gpipe", "gpipe again")
    )
    assert again < grown / 2
