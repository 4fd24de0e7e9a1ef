"""A scaling study whose figures are computed, not measured, for the tests of its page and its table."""

from __future__ import annotations

from typing import Any

from trainer.bench.scaling.cells import Cell, MeasuredCell, key
from trainer.bench.scaling.study import Study

NETWORKS = ("vgg", "resnet18", "densenet121", "resattnet18", "unet3d")
SPEEDS = dict(zip(NETWORKS, (9.0, 20.0, 12.0, 15.0, 6.0), strict=True))
PARAMETERS = 2_000_000
BYTES_PER_S = 25e6


def make_study(**changes: Any) -> Study:
    """Five networks on this host and on eight emulated ones."""
    given: dict[str, Any] = {
        "models": NETWORKS,
        "ranks": (1, 2, 4, 8),
        "strategies": (
            "data",
            "parameter-server",
            "parameter-server/servers=n/placement=colocated",
            "data/algorithm=tree",
        ),
        "batch": 8,
        "size": 32,
        "width": 8,
        "scalings": ("strong", "weak"),
        "hosts": (0, 8),
        "bandwidths": ("200mbit",),
        "steps": 10,
        "repeats": 1,
        "epochs": 0,
        "emulated": True,
        "cpus": 0.2,
    }
    return Study(**{**given, **changes})


def make_rows(study: Study) -> dict[str, MeasuredCell]:
    """Every cell succeeds, but those that reduce tensor by tensor."""
    return {key(cell): make_row(cell) for cell in study.cells()}


def make_row(cell: Cell) -> MeasuredCell:
    """A ring sends 2(n-1)/n M, one server n M; nothing overlaps."""
    if cell.options.get("reduction") == "per_tensor" and not cell.train:
        return MeasuredCell(cell, error="2 ranks: no 'ready' within 900 s.")
    if cell.train:
        loss = [1 / (epoch + 1) for epoch in range(cell.epochs)]
        curve = tuple(
            {"epoch": n + 1, "seconds": (n + 1) * 8.0 / cell.ranks, "val_accuracy": 1 - v / 2, "val_loss": v}
            for n, v in enumerate(loss)
        )
        behind = {str(n): 100 // (n + 1) for n in range(cell.ranks)}
        facts = {"staleness": {"updates": behind}} if cell.options.get("mode") == "async" else {}
        return MeasuredCell(cell, 10.0, curve=curve, facts=facts, machine={"cpu": "made up", "cores": 2})
    compute = cell.rank_batch / SPEEDS[cell.model]
    n, size = cell.ranks, 4 * PARAMETERS
    crossing = (
        2 * (n - 1) / n * size if cell.strategy != "parameter-server" or cell.servers == n else n * size
    )
    wire = crossing / BYTES_PER_S if cell.hosts > 1 else 0.0
    step = compute + wire
    host = {"sent": crossing * 1.04, "received": crossing * 1.03}
    return MeasuredCell(
        cell,
        samples_per_second=cell.global_batch / step,
        step_s={"median": step, "min": step * 0.9, "max": step * 1.3},
        timeline={
            "input_wait": 0.0,
            "forward": 0.3 * compute,
            "backward": 0.6 * compute,
            "exposed": wire,
            "overlapped": 0.0,
            "update": 0.05 * compute,
            "other": 0.05 * compute,
        },
        interfaces={f"n{number + 1}": host for number in range(cell.machines)},
        predicted={
            "seconds": wire,
            "step_s": step * 0.97,
            "interfaces": {"n1": {"sent": crossing, "received": crossing}},
        },
        machine={"cpu": "made up", "cores": 2},
    )
