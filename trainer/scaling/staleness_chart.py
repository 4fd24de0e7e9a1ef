"""How stale the updates of asynchronous trainings were."""

from __future__ import annotations

from collections.abc import Sequence

from trainer.report.axes import Axes
from trainer.report.figure import Figure, table
from trainer.scaling.summary import Training


def staleness(name: str, heading: str, trained: Sequence[tuple[str, str, Training]]) -> Figure | None:
    """Share of updates by staleness, side by side for each training; None where none was asynchronous.

    Args:
        name: of the files.
        heading: on the page.
        trained: words for the legend, colour, what was measured; `facts["staleness"]["updates"]` of its row
            is the number of updates by staleness.
    """
    counted = []
    for words, kind, training in trained:
        updates = (training.row.facts.get("staleness") or {}).get("updates")
        if updates:
            counted.append((words, kind, {int(stale): int(count) for stale, count in updates.items()}))
    if not counted:
        return None
    last = max(max(updates) for _, _, updates in counted)
    shares = [(w, k, {s: n / sum(u.values()) for s, n in u.items()}) for w, k, u in counted]
    axes = Axes(
        (-0.5, last + 0.5),
        (0.0, max(max(share.values()) for _, _, share in shares) * 1.1),
        x_label="versions that an update was behind",
        y_label="share of updates",
        title=f"{heading}: share of updates by staleness",
    )
    axes.x_ticks = [float(s) for s in range(0, last + 1, max(1, -(-last // 10)))]
    axes.x_names = [f"{s:g}" for s in axes.x_ticks]
    width = 0.8 / len(shares)
    rows = []
    for place, (words, kind, share) in enumerate(shares):
        for stale, part in sorted(share.items()):
            centre = stale - 0.4 + (place + 0.5) * width
            axes.bar(centre, part, width * 0.9, kind, f"{words}: {part:.1%} of updates are {stale} behind")
            rows.append((words, stale, counted[place][2][stale]))
    legend = tuple((kind, words) for words, kind, _ in shares)
    return Figure(name, heading, axes, table(["training", "staleness", "updates"], rows), legend)
