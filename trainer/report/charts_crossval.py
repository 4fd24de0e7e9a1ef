"""Charts of a cross-validation: the figures of every fold side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainer.report.axes import Axes
from trainer.report.charts_training import SHARE_TICKS
from trainer.report.figure import Figure, table
from trainer.report.strips import strips

# Figures between 0 and 1 that share an axis, in few letters: four of them must fit on a phone.
SHARES = {
    "auc": "AUC",
    "balanced_accuracy": "Bal. acc.",
    "sensitivity": "Sens.",
    "specificity": "Spec.",
    "dice": "Dice",
}


def over_folds(
    name: str, heading: str, groups: Sequence[tuple[str, Sequence[float | None]]], tips: Sequence[str]
) -> Figure | None:
    """Return each run's figures as dots.

    Args:
        name: of the figure's files.
        heading: of the figure.
        groups: name of a figure and its value in each run, None where not known.
        tips: names of the runs.
    """
    known = [
        (label, [(t, v) for t, v in zip(tips, values, strict=True) if v is not None])
        for label, values in groups
    ]
    known = [(label, values) for label, values in known if values]
    if not known:
        return None
    every = [v for _, values in known for _, v in values]
    is_share = len(known) > 1 or (min(every) >= 0 and max(every) <= 1)
    low, high = min(0.0, min(every) * 1.1), max(every) * 1.1 or 1.0
    axes = Axes(
        (0, len(known)),
        (0.0, 1.0) if is_share else (low, high),
        x_label="",
        y_label="value of a run",
        title=f"{heading}: " + ", ".join(label for label, _ in known),
        x_ticks=[k + 0.5 for k in range(len(known))],
        x_names=[label for label, _ in known],
        y_ticks=SHARE_TICKS if is_share else None,
        width=max(360, 95 * len(known) + 80),
        height=320,
    )
    strips(
        axes,
        [(label, np.array([v for _, v in values])) for label, values in known],
        [[f"{tip}: {v:.3f}" for tip, v in values] for _, values in known],
    )
    rows = [(label, tip, v) for label, values in known for tip, v in values]
    return Figure(
        name,
        heading,
        axes,
        table(["figure", "run", "value"], rows),
        (("dot s1", "a run"),),
        caption="Boxes: middle half of the runs, and their median. Folds share training subjects: the spread "
        "describes them and is no standard error.",
    )
