"""The page of `benchmarks/on_a_gpu.py`, from made-up findings."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "gpu"))
    sys.modules.pop("page", None)
    import page

    return page


def rows(way: str, *step_ms: float, **more: Any) -> dict[str, Any]:
    """Steps in float32 and bfloat16, each uncompiled and compiled; None where it failed."""
    kinds = [(precision, xla) for precision in ("float32", "mixed_bfloat16") for xla in (False, True)]
    return {
        "device": "NVIDIA Made-up",
        "rows": [
            {
                "way": way,
                "precision": precision,
                "compiled": xla,
                "step_ms": ms,
                "block_ms": [ms - 1, ms],
                **more,
            }
            for (precision, xla), ms in zip(kinds, step_ms, strict=True)
        ],
    }


PARTS = {
    **{"forward_backward_ms": 9.0, "update_ms": 3.0, "fault": "", "peak_bytes": 2**30},
    "passes": {"way": "whole", "why": "it is the fastest way", "ms": {"none": 9.0, "whole": 5.5}},
}
KNOWN = {
    "ours-resnet18": rows("ours", 26.0, 18.0, 20.0, 9.0, **PARTS),
    "keras-resnet18": rows("keras", 30.0, 16.0, 25.0, 10.0),
    "torch-resnet18": rows("torch", 40.0, 20.0, 21.0, 12.0),
    "run-resnet18": {
        "epochs": [{"seconds": 1.0}, {"seconds": 0.018}, {"seconds": 0.019}],
        "update": {"why": "it is faster"},
    },
    "predicted-resnet18": {"rows": [{"step_s": 0.0245, "memory_bytes": 1.25 * 2**30}]},
}


def test_it_says_what_is_wanted_and_whether_it_was_found(page: Any) -> None:
    text = page.text(KNOWN, ["resnet18", "sfcn"])
    assert text.startswith("# On NVIDIA Made-up\n")
    assert "| resnet18 | float32 | 26.0 (25.0 to 26.0) | 18.0" in text
    assert "| sfcn | float32 |  |  |  |  |  |  |" in text  # not measured yet
    parts = "9.0 | none 9.0, whole 5.5 | 3.00 | 3.00 | 1.00 GiB"
    assert f"| resnet18 | float32 | {parts} | 1.25 GiB |" in text
    assert f"| resnet18 | mixed_bfloat16 | {parts} |  |" in text
    wanted = text.partition("## Wanted, and found\n\n")[2].splitlines()
    # 18.5 of the run's last epochs, 16.0 of Keras.
    assert wanted[0] == "- **not met**: a run's step is 1.16 times compiled Keras' (at most 1.05)"
    assert wanted[1] == "- met: resnet18, bfloat16 2.00 times as fast (at least 1.8)"
    assert wanted[2] == "- **not met**: ahead of compiled PyTorch on 1 of 1 (3 of 5)"
    assert wanted[3] == "- met: resnet18 predicted -6% (within 10%)"


def test_nothing_is_a_page_too_and_a_processor_is_called_one(page: Any) -> None:
    assert page.text({}, ["resnet18"]).startswith("# On no device yet\n")
    known = {"ours-resnet18": {**KNOWN["ours-resnet18"], "device": "CPU"}}
    assert "the figures say nothing of a GPU" in page.text(known, ["resnet18"])


def test_what_failed_has_no_figure(page: Any) -> None:
    failed = {"rows": [{"way": "keras", "precision": "float32", "compiled": True, "fault": "no libdevice"}]}
    assert page.row({"keras-resnet18": failed}, "resnet18", "float32", "keras", True) == {}
