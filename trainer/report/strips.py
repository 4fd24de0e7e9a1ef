"""Values of groups side by side: every one as a dot, quartiles as a box."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainer.report.axes import Axes


def strips(
    axes: Axes, groups: Sequence[tuple[str, np.ndarray]], tips: Sequence[Sequence[str]], kind: str = "s1"
) -> None:
    """Draw values as dots side by side, a box from the lower to the upper quartile, a line at the median.

    Args:
        axes: group g is drawn about x = g + 0.5.
        groups: name and values (finite) of each.
        tips: what each dot says.
        kind: class of the dots.
    """
    for place, (_, values) in enumerate(groups):
        if not len(values):
            continue
        middle = place + 0.5
        low, median, high = (float(q) for q in np.percentile(values, [25, 50, 75]))
        axes.box((middle - 0.3, low), (middle + 0.3, high), f"{kind} pale")
        axes.line([(middle - 0.3, median), (middle + 0.3, median)], kind)
        for order, i in enumerate(np.argsort(values, kind="stable")):
            across = middle + 0.09 * ((order * 2) % 5 - 2)  # a fixed zigzag, so that dots lie side by side
            axes.dot(across, float(values[i]), kind, tips[place][i], radius=3)
