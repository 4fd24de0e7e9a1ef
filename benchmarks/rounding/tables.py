"""How far results are apart, as numbers, as lines of Markdown and as a picture."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rounding import switches
from rounding.training import ONE, OTHER_ORDER, PRECISIONS, other_orders, seeds, trained


def apart(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Distance over the length of the way from the first weights of `other`, after each step (steps,)."""
    way = np.linalg.norm(other[1:] - other[0], axis=1)
    return np.asarray(np.linalg.norm(one[1:] - other[1:], axis=1) / way)


def study(job: dict[str, Any], worlds: list[int]) -> list[dict[str, Any]]:
    """One row per network, rate and seed: what is how far apart after each step."""
    found, rows = trained(job, worlds), []
    ways = [*other_orders(job["orders"]), *(f"{n} rank{'s'[: n > 1]}" for n in worlds)]
    for spec, rate, seed in itertools.product(job["networks"], job["rates"], seeds(job)):
        key = f"{spec}|{rate:g}|{seed}|"
        narrow, wide = (found[f"{key}{ONE}|{precision}"] for precision in PRECISIONS)
        rows.append(
            {
                "network": spec,
                "rate": rate,
                "seed": seed,
                "float32": {w: apart(found[f"{key}{w}|float32"], narrow).tolist() for w in ways},
                "float64": {w: apart(found[f"{key}{w}|float64"], wide).tolist() for w in ways},
                "to float64": {w: apart(found[f"{key}{w}|float32"], wide).tolist() for w in (ONE, *ways)},
                "largest": {
                    precision: {
                        w: np.abs(found[f"{key}{w}|{precision}"][1:] - reference[1:]).max(axis=1).tolist()
                        for w in ways
                    }
                    for precision, reference in (("float32", narrow), ("float64", wide))
                },
                "switched": switches.switched(found, f"{spec}|{seed}", [ONE, *ways], ONE),
                "held-out loss": {
                    w: {p: float(found[f"{key}{w}|{p}|loss"]) for p in PRECISIONS} for w in (ONE, *ways)
                },
            }
        )
    return rows


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """The figures as lines of Markdown; of several seeds the median and the largest."""
    steps = len(next(iter(rows[0]["float32"].values())))
    shown = [n for n in (1, 2, 4, 8, 16, 32, 64) if n < steps] + [steps]
    yield "| network | rate | | " + " | ".join(f"step {n}" for n in shown) + " |"
    yield "| --- | --- | --- |" + " --- |" * len(shown)
    for (spec, rate), group in itertools.groupby(rows, key=lambda row: (row["network"], row["rate"])):
        several = list(group)
        for kind in ("float32", "to float64", "float64"):
            for way in several[0][kind]:
                values = np.array([row[kind][way] for row in several])[:, np.array(shown) - 1]
                cells = [f"{np.median(v):.1g}" + f" to {v.max():.1g}" * (len(v) > 1) for v in values.T]
                yield f"| {spec} | {rate:g} | {kind}, {way} | " + " | ".join(cells) + " |"
        if len(several) == 1:
            losses = several[0]["held-out loss"]
            told = (f"{w} {v['float32']:.4g} ({v['float64']:.4g})" for w, v in losses.items())
            yield f"| {spec} | {rate:g} | held-out loss (in float64) | " + ", ".join(told) + " |"


def draw(path: Path, rows: list[dict[str, Any]]) -> None:
    """A panel for each network and rate: ranks, another order, and both in float64, over the steps."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [row for row in rows if row["seed"] == rows[0]["seed"]]
    rates = sorted({row["rate"] for row in rows})
    specs = list(dict.fromkeys(row["network"] for row in rows))
    size = (2.3 * len(specs) + 1, 2.4 * len(rates) + 0.7)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(rates), len(specs), sharex=True, sharey=True, squeeze=False)
    for row in rows:
        panel = panels[rates.index(row["rate"])][specs.index(row["network"])]
        for kind, colour in (("float32", "#1f5fa8"), ("float64", "#2e8b57")):
            for way, values in row[kind].items():
                other = way.startswith(OTHER_ORDER)
                label = f"{kind}, " + ("one process, other order" if other else "ranks")
                numbers = np.arange(1, len(values) + 1)
                line = {"color": "#d95f02", "linewidth": 2.2, "linestyle": (0, (2, 1.4))} if other else {}
                style: dict[str, Any] = {"color": colour, "linewidth": 1.1, "label": label, **line}
                # What is equal bit for bit has no logarithm.
                panel.plot(numbers, np.maximum(values, 1e-17), **style)
        panel.set_yscale("log")
        panel.set_ylim(1e-17, 10)
        panel.set_title(f"{row['network'].replace(':', ', ')}, rate {row['rate']:g}", fontsize=9)
        panel.grid(alpha=0.3)
    for panel in panels[-1]:
        panel.set_xlabel("steps")
    figure.supylabel("difference / way from the start", fontsize=9)
    handles, labels = panels[0][0].get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    figure.legend(once.values(), once.keys(), loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    figure.savefig(path, dpi=120)
