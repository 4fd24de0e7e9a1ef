"""The table of a study, as a paper would print it: CSV with every figure, LaTeX with the ones that matter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainer.bench.scaling.charts import MB
from trainer.bench.scaling.summary import Curve, LinePoint
from trainer.report.figure import FigureTable

HEADER = (
    "network",
    "size",
    "width",
    "batch",
    "scaling",
    "place",
    "strategy",
    "ranks",
    "samples_per_second",
    "step_s",
    "step_s_min",
    "step_s_max",
    "speed_up",
    "efficiency",
    "input_wait_s",
    "forward_s",
    "backward_s",
    "exposed_s",
    "overlapped_s",
    "update_s",
    "other_s",
    "sent_bytes",
    "received_bytes",
    "predicted_sent_bytes",
    "predicted_received_bytes",
    "predicted_step_s",
    "repeats",
)


def table(curves: Sequence[Curve]) -> FigureTable:
    """Return every figure; bytes are per step of the busiest host, seconds per step."""
    return FigureTable(HEADER, tuple(tuple(_row(curve, p)) for curve in curves for p in curve.points))


def _row(curve: Curve, point: LinePoint) -> list[Any]:
    cell = point.cell
    timeline = point.timeline
    parts = ("input_wait", "forward", "backward", "exposed", "overlapped", "update", "other")
    return [
        cell.model,
        cell.size,
        cell.width,
        cell.batch,
        cell.scaling,
        curve.line.place,
        curve.line.strategy,
        point.ranks,
        point.samples_per_second,
        *(point.step_s or (None, None, None)),
        point.speed_up,
        point.efficiency,
        *(timeline.get(part) for part in parts),
        point.busiest("sent"),
        point.busiest("received"),
        point.predicted("sent"),
        point.predicted("received"),
        point.predicted_s,
        len(point.rows),
    ]


_COLUMNS = r"""\begin{tabular}{llrrrrrr}
\toprule
Network & Strategy & Ranks & Samples/s & Step (s) & Speed-up & Efficiency & MB per step \\"""


def latex(curves: Sequence[Curve]) -> str:
    r"""Return one `table` environment for each place and scaling (packages: booktabs).

    MB per step: of the host that sends most.
    """
    groups: dict[tuple[str, str], list[Curve]] = {}
    for curve in curves:
        groups.setdefault((curve.line.place, curve.line.first.scaling), []).append(curve)
    return "\n".join(_environment(place, scaling, mine) for (place, scaling), mine in groups.items())


def _environment(place: str, scaling: str, curves: Sequence[Curve]) -> str:
    first = curves[0].line.first
    share = "per rank" if scaling == "weak" else "in all"
    caption = (
        f"{scaling.capitalize()} scaling on {place}: volumes of ${first.size}^3$ voxels, "
        f"{first.batch} samples per step {share}, {first.steps} steps, "
        f"median of {max(len(p.rows) for c in curves for p in c.points)} measurement(s)."
    )
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{_escaped(caption, keep='$^')}}}", _COLUMNS]
    network = ""
    for curve in curves:
        model = curve.line.first.model
        lines.append(r"\midrule" if model != network else r"\addlinespace")
        for number, point in enumerate(curve.points):
            words = [model if model != network else "", curve.line.strategy if not number else ""]
            network = model
            sent = point.busiest("sent")
            figures = [
                str(point.ranks),
                f"{point.samples_per_second:.2f}",
                "--" if point.step_s is None else f"{point.step_s[0]:.3f}",
                "--" if point.speed_up is None else f"{point.speed_up:.2f}",
                "--" if point.efficiency is None else f"{point.efficiency:.2f}",
                "--" if sent is None else f"{sent / MB:.2f}",
            ]
            lines.append(" & ".join([*map(_escaped, words), *figures]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{c: "\\" + c for c in "&%$#_{}"},
}


def _escaped(text: str, keep: str = "") -> str:
    return "".join(c if c in keep else _SPECIAL.get(c, c) for c in text)
