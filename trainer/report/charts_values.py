"""Charts of a regression: predicted against true, and the differences against their mean."""

from __future__ import annotations

import numpy as np

from trainer.report.axes import Axes
from trainer.report.figure import Figure, table
from trainer.report.predictions import Values


def scatter(predictions: Values, target: str, unit: str) -> Figure:
    """Return predicted against true values; on the dashed line they are equal."""
    bounds = _around(np.concatenate([predictions.true, predictions.predicted]))
    axes = Axes(
        bounds,
        bounds,
        x_label=f"true {target}{_in(unit)}",
        y_label=f"predicted {target}{_in(unit)}",
        title=f"Predicted against true {target} of the held-out scans",
        width=360,
        height=340,
    )
    axes.line([(bounds[0], bounds[0]), (bounds[1], bounds[1])], "chance")
    for name, x, y in zip(predictions.names, predictions.true, predictions.predicted, strict=True):
        axes.dot(float(x), float(y), "s1", f"{name}: {x:.1f}, predicted {y:.1f}", radius=4)
    numbers = zip(
        predictions.subjects,
        predictions.true.tolist(),
        predictions.predicted.tolist(),
        map(predictions.session, range(len(predictions.rows))),
        strict=True,
    )
    return Figure(
        "scatter",
        "Predicted against true",
        axes,
        table(["subject", "target", "predicted", "session"], numbers),
        (("dot s1", "a scan"), ("chance", "equal")),
    )


def bland_altman(predictions: Values, target: str, unit: str) -> Figure:
    """Return difference against mean with the limits of agreement (Bland and Altman, Lancet
    1986;327:307-310).
    """
    means, errors = (predictions.true + predictions.predicted) / 2, predictions.errors
    bias = float(errors.mean())
    spread = float(errors.std(ddof=1)) if len(errors) > 1 else 0.0
    low, high = bias - 1.96 * spread, bias + 1.96 * spread
    across = _around(means)
    axes = Axes(
        across,
        _around(np.array([*errors, low, high, 0.0])),
        x_label=f"mean of true and predicted {target}{_in(unit)}",
        y_label=f"predicted minus true{_in(unit)}",
        title=f"Bland-Altman plot: bias {bias:.2f}, limits of agreement {low:.2f} to {high:.2f}",
        width=360,
        height=340,
    )
    axes.line([(across[0], bias), (across[1], bias)], "s2")
    for limit in (low, high):
        axes.line([(across[0], limit), (across[1], limit)], "chance")
    for name, x, y in zip(predictions.names, means, errors, strict=True):
        axes.dot(float(x), float(y), "s1", f"{name}: {y:+.1f}", radius=4)
    numbers = zip(
        predictions.subjects,
        means.tolist(),
        errors.tolist(),
        map(predictions.session, range(len(predictions.rows))),
        strict=True,
    )
    return Figure(
        "bland-altman",
        "Bland-Altman",
        axes,
        table(["subject", "mean", "difference", "session"], numbers),
        (("s2", f"bias {bias:+.2f}"), ("chance", f"limits of agreement {low:+.2f} to {high:+.2f}")),
    )


def _around(values: np.ndarray) -> tuple[float, float]:
    """A range with a margin about values."""
    low, high = float(values.min()), float(values.max())
    margin = 0.06 * (high - low or 1.0)
    return low - margin, high + margin


def _in(unit: str) -> str:
    return f",{unit}" if unit else ""
