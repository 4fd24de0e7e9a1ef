"""The kit for a machine with a GPU, tried out on a processor: all but PyTorch, and a second start."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NETWORKS = ("resnet18", "unet3d", "sfcn", "vgg", "densenet121")


def kit(out: Path) -> subprocess.CompletedProcess[str]:
    options = ["--tiny", "--networks", "sfcn", "--out", str(out), "--torch-python", "false"]
    words = [sys.executable, str(ROOT / "benchmarks" / "on_a_gpu.py"), *options]
    return subprocess.run(words, capture_output=True, text=True, timeout=580, check=True)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_each_part_has_a_file_and_what_failed_is_measured_the_next_time(tmp_path: Path) -> None:
    out = tmp_path / "out"
    said = kit(out).stdout
    assert "torch-sfcn ...\n    failed: exit code 1" in said
    names = {path.stem for path in out.glob("*.json")}
    assert names == {
        "ours-sfcn", "keras-sfcn", "run-sfcn", "run-sfcn-bfloat16", "predicted-sfcn", "profile-sfcn",
    }  # fmt: skip
    ours = json.loads((out / "ours-sfcn.json").read_text())
    assert [(one["precision"], one["compiled"]) for one in ours["rows"]] == [
        (precision, compiled) for precision in ("float32", "mixed_bfloat16") for compiled in (False, True)
    ]
    assert all(one["step_ms"] > 0 and one["update_ms"] > 0 and not one["fault"] for one in ours["rows"])
    assert "run-sfcn, update chosen" in (out / "page.md").read_text()
    again = kit(out).stdout
    assert again.startswith("[1/1] torch-sfcn ...")


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_is_described_with_all_of_its_weights(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "gpu"))
    import networks

    from trainer import models

    dense = models.describe(name).dense
    model = models.build(name, (32, 32, 32, 1), 2, dense=dense, width=4)
    layers, weights = networks.described(model), networks.arrays(model)
    seen: set[str] = set()
    for one in layers:
        assert set(one["inputs"]) <= seen
        seen.add(one["name"])
    parts = {"convolution": 1, "transposed": 1, "norm": 4, "dense": 1}
    counted = sum(parts.get(one["kind"], 0) + bool(one.get("bias")) for one in layers)
    assert counted == len(weights) == len(model.weights) - sum("seed" in v.path for v in model.weights)
    assert layers[-1]["to"] == 2
