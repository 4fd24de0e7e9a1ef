#!/usr/bin/env python3
"""Compare ring all-reduce and parameter servers on emulated hosts with shaped links, each predicted first.

    sudo .venv/bin/python benchmarks/ring_against_server.py --out ring-against-server --plot comparison.png

The hosts are namespaces of this machine: packets, bytes and waiting are real, but all share this machine's
cores. So the network is one of many weights and little computing, and links are slow. One host more than
there are ranks is made for each separate server. A run that is stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cingulum.bench.scaling.measure import measure
from jobs.testbed import Testbed
from trainer.bench.scaling.cells import Cell, MeasuredCell, key
from trainer.bench.scaling.results import StudyResults
from trainer.planning import communication as costs

RANKS = (2, 4, 8)
SEPARATE = ((4, 2), (4, 3), (4, 4))  # ranks and servers; from 3 servers on they should beat the ring
# Below the 64 KiB up to which Open MPI sends over TCP without asking the receiver first.
PIECE_MB = 0.06


def cells(bandwidth: str, steps: int, repeats: int) -> tuple[Cell, ...]:
    """All that is compared, repeats outermost."""

    def cell(ranks: int, repeat: int, servers: int = 0, placement: str = "separate") -> Cell:
        strategy = "parameter-server" if servers else "data"
        options = {"placement": placement, "piece_mb": PIECE_MB} if servers else {}
        return Cell(
            "tiny",
            size=16,
            width=88,
            batch=1,
            scaling="weak",
            strategy=strategy,
            options=options,
            ranks=ranks,
            servers=servers,
            hosts=ranks,
            bandwidth=bandwidth,
            steps=steps,
            repeat=repeat,
            emulated=True,
        )

    found = []
    for repeat, n in itertools.product(range(repeats), RANKS):
        found += [cell(n, repeat), cell(n, repeat, 1), cell(n, repeat, n, "colocated")]
        found += [cell(n, repeat, k) for ranks, k in SEPARATE if ranks == n]
    return tuple(found)


def measure_all(
    wanted: Sequence[Cell], folder: Path, progress: Callable[[str], None]
) -> dict[str, MeasuredCell]:
    """Rows of all cells by key; those that are in the folder already are not measured again."""
    with StudyResults(folder) as results:
        missing = results.missing(tuple(wanted), retry=True)
        if missing:
            most = max(cell.machines for cell in missing)
            testbed = Testbed.up(most, slurm=False, name="ring-against-server", tied=True)
            try:
                for cell in missing:
                    results.add(measure(cell, testbed, progress))
            finally:
                testbed.down()
        return {key(cell): results.rows[key(cell)] for cell in wanted}


def off(row: MeasuredCell) -> float:
    """Largest deviation of the bytes on any host's interface from the prediction, as a share of it."""
    return max(
        abs(row.interfaces[host][way] / row.predicted["interfaces"][host][way] - 1)
        for host in row.interfaces
        for way in ("sent", "received")
    )


def name(cell: Cell) -> str:
    """Such as `4 ranks, 2 separate servers`."""
    if not cell.servers:
        return f"{cell.ranks} ranks, ring"
    plural = "s" if cell.servers > 1 else ""
    return f"{cell.ranks} ranks, {cell.servers} {cell.options['placement']} server{plural}"


def table(rows: Sequence[MeasuredCell]) -> list[str]:
    """Predicted and measured, one line per cell, then the ratios to the ring of as many ranks."""
    lines = [
        f"{'':<32}{'predicted s':>12}{'measured s':>11}{'':>8}{'computing s':>12}{'bytes off by':>13}",
    ]
    for row in rows:
        if row.error:
            lines.append(f"{name(row.cell):<32}{row.error.splitlines()[0]}")
            continue
        predicted, measured = row.predicted["step_s"], row.step_s["median"]
        lines.append(
            f"{name(row.cell):<32}{predicted:>12.3f}{measured:>11.3f}{measured / predicted - 1:>+8.1%}"
            f"{row.predicted['compute_s']:>12.3f}{off(row):>13.1%}"
        )
    rings = {(row.cell.ranks, row.cell.repeat): row for row in rows if not row.cell.servers and not row.error}
    lines += ["", f"{'over the ring':<32}{'formula':>12}{'measured':>11}"]
    for row in rows:
        ring = rings.get((row.cell.ranks, row.cell.repeat))
        if row.cell.servers and ring and not row.error:
            expected, found = formula(row.cell), row.step_s["median"] / ring.step_s["median"]
            lines.append(f"{name(row.cell):<32}{expected:>12.3f}{found:>11.3f}{found / expected - 1:>+8.1%}")
    return lines


def formula(cell: Cell) -> float:
    """Seconds of a layout over those of the ring: n^2 / (2(n-1)) for one server; no headers, no computing."""
    n, k = cell.ranks, cell.servers
    shares = (1 / k,) * k
    colocated = cell.options["placement"] == "colocated"
    layout = costs.servers(shares, n, colocated=colocated)
    seconds = [
        costs.predict(rounds, range(n + k), bytes_per_second=1.0, frames=costs.BARE).seconds
        for rounds in (layout, costs.reduction("ring", 1.0, n))
    ]
    return seconds[0] / seconds[1]


def plot(rows: Sequence[MeasuredCell], path: Path) -> None:
    """Seconds per step against ranks, predicted (lines) and measured (points), and against servers."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [row for row in rows if row.error is None]
    several = any(row.cell.servers in (2, 3) for row in rows)  # the crossover is worth a picture
    panels = 2 if several else 1
    figure, axes = pyplot.subplots(1, panels, figsize=(5 * panels, 4), layout="constrained", squeeze=False)
    left = axes[0, 0]
    kinds = {
        "ring": lambda cell: cell.servers == 0,
        "one server": lambda cell: cell.servers == 1 and cell.options["placement"] == "separate",
        "n colocated servers": lambda cell: cell.options.get("placement") == "colocated",
    }
    colours = dict(zip(kinds, ("#2166ac", "#b2182b", "#1b7837"), strict=True))
    marks = dict(zip(kinds, ("o", "s", "^"), strict=True))
    for kind, fits in kinds.items():
        mine = sorted((row for row in rows if fits(row.cell)), key=lambda row: row.cell.ranks)
        style = "--" if kind == "n colocated servers" else "-"
        ranks = [row.cell.ranks for row in mine]
        left.plot(ranks, [row.predicted["step_s"] for row in mine], style, color=colours[kind])
        left.plot(ranks, [row.step_s["median"] for row in mine], marks[kind], color=colours[kind], label=kind)
    left.set(xlabel="ranks", ylabel="seconds per step", xticks=RANKS, ylim=(0, None))
    left.set_title("lines: predicted; points: measured", fontsize=10)
    left.legend(frameon=False)
    if several:
        _crossover(axes[0, 1], [row for row in rows if row.cell.ranks == 4], colours["ring"])
    for panel in axes[0]:
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def _crossover(right: Any, four: Sequence[MeasuredCell], ring: str) -> None:
    """Seconds per step of four ranks against their servers, and of the ring."""
    separate = sorted(
        (r for r in four if r.cell.options.get("placement") == "separate"), key=lambda r: r.cell.servers
    )
    counts = [row.cell.servers for row in separate]
    right.plot(counts, [row.predicted["step_s"] for row in separate], "-", color="#762a83")
    measured = [row.step_s["median"] for row in separate]
    right.plot(counts, measured, "D", color="#762a83", label="separate servers")
    for row in (row for row in four if not row.cell.servers):
        right.axhline(row.predicted["step_s"], color=ring)
        right.plot(
            counts[-1:],
            [row.step_s["median"]],
            "o",
            color=ring,
            label="ring" if row.cell.repeat == 0 else None,
        )
    right.set(xlabel="servers, beside 4 ranks", xticks=counts, ylim=(0, None))
    # k separate servers need n/k M/B, the ring 2(n-1)/n M/B: they are faster from n^2 / (2(n-1)) on.
    right.set_title(f"crossover predicted at {4**2 // (2 * (4 - 1)) + 1} servers", fontsize=10)
    right.legend(frameon=False)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        description="Ring all-reduce against parameter servers, predicted first."
    )
    parser.add_argument("--bandwidth", default="50mbit", help="of each host's link (default: 50mbit)")
    parser.add_argument("--steps", type=int, default=3, help="timed steps of each (default: 3)")
    parser.add_argument("--repeats", type=int, default=1, help="measurements of each, in turn (default: 1)")
    parser.add_argument("--out", type=Path, required=True, help="folder of the rows")
    parser.add_argument("--plot", type=Path, help="a picture of it all")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    args = parser.parse_args()
    wanted = cells(args.bandwidth, args.steps, args.repeats)
    found = measure_all(wanted, args.out, lambda text: print(text, file=sys.stderr, flush=True))
    rows = [found[key(cell)] for cell in wanted]
    if args.plot:
        plot(rows, args.plot)
    print(
        json.dumps([json.loads(row.to_json()) for row in rows], indent=2)
        if args.json
        else "\n".join(table(rows))
    )
    return 1 if any(row.error for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
