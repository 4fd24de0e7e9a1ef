#!/usr/bin/env python3
"""The same network in PyTorch as its users run it: seconds and memory, as JSON on standard output.

Run by `benchmarks/on_a_gpu.py` as `python torch_part.py JOB`, with a Python that has PyTorch. JOB holds the
layers that `tensorflow_part.py` has told, and what is timed, as there.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch_networks
from torch.nn import functional


def main() -> None:
    """Print a row for each precision, compiled and not."""
    job = json.loads(sys.argv[1])
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    rows = []
    for precision in ("float32", "mixed_bfloat16"):
        for compiled in (False, True):
            row = {"way": "torch", "precision": precision, "compiled": compiled}
            try:
                rows.append({**row, **_timed(job, precision == "mixed_bfloat16", compiled)})
            except Exception as error:  # whatever compilers of other people raise: the other rows stay
                rows.append({**row, "fault": f"{type(error).__name__}: {str(error)[:200]}"})
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(json.dumps({"device": device, "torch": torch.__version__, "rows": rows}))


def _timed(job: dict[str, Any], half: bool, compiled: bool) -> dict[str, Any]:
    has_gpu = torch.cuda.is_available()
    device = torch.device("cuda" if has_gpu else "cpu")
    torch.manual_seed(1)
    network = torch_networks.Described(job["layers"]).to(device, memory_format=torch.channels_last_3d)
    step_of = torch.compile(network) if compiled else network
    optimizer = torch.optim.AdamW(network.parameters(), 1e-3, weight_decay=0.004, fused=has_gpu)
    x = torch.randn(job["batch"], 1, *[job["size"]] * 3).contiguous(memory_format=torch.channels_last_3d)
    y = torch.randint(0, 2, (job["batch"], *([job["size"]] * 3 if job["dense"] else [])))
    if has_gpu:
        x, y = x.pin_memory(), y.pin_memory()
        torch.cuda.reset_peak_memory_stats()

    def step() -> None:
        given, targets = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            logits = step_of(given)
        _loss(logits.float(), targets).backward()
        optimizer.step()

    found = blocks(step, job, torch.cuda.synchronize if has_gpu else lambda: None)
    return {**found, "peak_bytes": torch.cuda.max_memory_allocated() if has_gpu else None}


def _loss(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of classes; of label maps, with the Dice loss beside it."""
    entropy = functional.cross_entropy(logits, y)
    if logits.ndim == 2:
        return entropy
    shares, known = logits.softmax(1), functional.one_hot(y, logits.shape[1]).movedim(-1, 1)
    both = (shares * known).sum((2, 3, 4))
    dice = (2 * both + 1e-5) / (shares.sum((2, 3, 4)) + known.sum((2, 3, 4)) + 1e-5)
    return entropy + 1 - dice[:, 1:].mean()


def blocks(step: Callable[[], None], job: dict[str, Any], wait: Callable[[], None]) -> dict[str, Any]:
    """Milliseconds of a step: median, fastest and slowest block; three steps warm up."""
    began = time.perf_counter()
    for _ in range(3):
        step()
    wait()
    first, found = time.perf_counter() - began, []
    for _ in range(job["blocks"]):
        began = time.perf_counter()
        for _ in range(job["steps"]):
            step()
        wait()
        found.append(1000 * (time.perf_counter() - began) / job["steps"])
    return {"step_ms": statistics.median(found), "block_ms": found, "first_s": first}


if __name__ == "__main__":
    main()
