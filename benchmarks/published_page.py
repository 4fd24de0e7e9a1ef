"""The figures of `published_results.py` as a page of the docs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Points = Sequence[tuple[float, float]]
# Of an efficiency, in points of a hundred, and of samples per second, in per cent: what counts as predicted.
NEAR = 5.0

TITLE = """# Published results, predicted from published hardware

`.venv/bin/python benchmarks/published_results.py --page prediction.md` makes this page. It asks the code
of [`cingulum simulate`](../how-to/simulate.md). Nothing is fitted to what is predicted; what was not
published is an assumption, and said to be one.
"""
DATA = """## Data parallelism

Efficiency: samples per second over those of as many devices alone. *Range*: if none of the exchange could
be hidden by the backward pass, and if all of that pass could hide it. *Even ranks*: if none were slow. A
hit is within 5 points.
"""
ASSUMED = """
Assumed: the cluster files [`p100-ethernet` and `dgx-a100`](../how-to/simulate.md#cluster-files), whose links
are taken at line rate and whose slow ranks (2 % and 1 % of a step) are estimates; one ring over all ranks,
those of one host after each other; a backward pass of two thirds of the step; parts of 64 MiB (Horovod's
fusion buffer) that are equal and leave in turn. Horovod's study says neither batch nor samples per second
of its P100, so these are those of TensorFlow's own benchmarks. Not in the prediction: what reducing costs
the devices, Horovod's talk, input.

Samples per second of one device are from:
"""
SERIES = """
## One system calibrates, others are predicted

What the devices' published figures are multiplied by is found on the smallest system, with everything that
its step is made of; nothing else is adjusted. Measured are medians of the submitters' runs, of each the
median of what its log tracks but the first. A hit is within 5 %.

| training | measured | predicted | off by | a step | computes | |
| --- | --- | --- | --- | --- | --- | --- |"""
SERIES_ASSUMED = """
Assumed: the networks as they are published, in mixed precision, batches of the table, gradients in float32;
devices as in `dgx-h200` and `dragonfly-a100`, H100 with 3,350 GB/s of memory; 5 us for launching a kernel,
the same part of each device's peak; a ring within each host and one between hosts for each device, as NCCL
has it; parts of 64 MiB. NVIDIA's systems reduce in their switches (SHARP), which is faster than rings over
64 hosts. Groups of 8 divide the volume as MLPerf's code does: slabs where maps have 32 slices or more; what
is smaller is computed whole. Not in the prediction: losses, input, waits between epochs.

Sources: mlcommons/training_results_v4.0, `results/*/unet3d`, and mlcommons/hpc_results_v3.0,
`results/*/cosmoflow`."""
GROWTH = """
## Ring against server: growth

Seconds of combining M bytes of gradients over links of B bytes per second, as multiples of M/B.

| ranks | ring | one server, apart | a server on each rank |
| --- | --- | --- | --- |"""
FILTERS = """
The ring stays below 2, one server grows with the ranks, as Shi (2019) reports. A server on each rank is as
good as the ring.

## Filters over several devices, with a master

Marques, Falcao and Alexandre (arXiv 1712.02546) report 3.28 with four CPUs and 2.45 with three GPUs for
500:1500. We do not know the speeds of their devices and links, so only this can be said: how fast links must
be, in bytes for each 1000 FLOPs of a device, if devices were equal. Task lists of `filters`, `mode: master`,
played; 32 x 32 images; only convolutions and the dense layer take time.
"""
OPEN = """
Neither a hit nor a miss: their devices were unequal, and with slower links or a slower rest on the master the
same speed-ups take faster links. The results are possible, and no more is shown.
"""
# Where the section of held_out.py begins.
HELD_OUT = "\n\n## Held-out networks, hosts and links\n"


def held_out(path: Path) -> str:
    """Return the section of held_out.py that a page has, from its heading to the end; or a newline."""
    _, heading, rest = (path.read_text() if path.exists() else "").partition(HELD_OUT)
    return heading + rest if heading else "\n"


def page(
    trainings: Sequence[tuple[Any, Mapping[str, float]]],
    growth: Sequence[tuple[int, float, float, float]],
    filters: Mapping[int, Points],
    crossing: Callable[[Points, float], float | None],
    series: Sequence[tuple[Any, float, Sequence[Any]]],
) -> str:
    """Return the page."""
    ratios = [1000 * ratio for ratio, _ in next(iter(filters.values()))]
    lines = [
        TITLE,
        DATA,
        "| network | ranks | measured | predicted | off by | even ranks | range | computes | exchanges | |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        *(_training(one, found) for one, found in trainings),
        ASSUMED,
        *(f"- {one.name}: {one.alone:g}/s, {one.batch} per rank. {one.alone_from}." for one, _ in trainings),
        "\nMeasured efficiencies are from:\n",
        *(
            f"- {', '.join(one.name for one, _ in trainings if one.measured_from == source)}: {source}."
            for source in dict.fromkeys(one.measured_from for one, _ in trainings)
        ),
        "",
        _said(trainings),
        SERIES,
        *(line for one, factor, found in series for line in _series(one, factor, found)),
        SERIES_ASSUMED,
        GROWTH,
        *(f"| {ranks} | {ring:.3f} | {one:.0f} | {each:.3f} |" for ranks, ring, one, each in growth),
        FILTERS,
        "| devices | " + " | ".join(f"{ratio:.3g}" for ratio in ratios) + " |",
        "| --- |" + " --- |" * len(ratios),
        *(
            f"| {count} | " + " | ".join(f"{speed:.2f}" for _, speed in points) + " |"
            for count, points in sorted(filters.items())
        ),
        "",
        *_reached(filters, crossing),
        OPEN,
    ]
    return "\n".join(lines)


def _training(one: Any, found: Mapping[str, float]) -> str:
    off = 100 * (found["efficiency"] - one.measured)
    return (
        f"| {one.name} | {one.ranks} | {one.measured:.1%} | {found['efficiency']:.1%} | {off:+.1f} | "
        f"{found['no_slow_ranks']:.1%} | "
        f"{found['exposed']:.0%} to {found['hidden']:.0%} | {1000 * found['compute_s']:.0f} ms | "
        f"{1000 * found['exchange_s']:.3g} ms | {'hit' if abs(off) <= NEAR else 'miss'} |"
    )


def _series(one: Any, factor: float, found: Sequence[Any]) -> list[str]:
    lines = []
    for row in found:
        off = 100 * (row.rate / row.system.measured - 1)
        hit = "hit" if abs(off) <= NEAR else "miss"
        calibrates = row is found[0]
        lines.append(
            f"| {one.name}: {row.system.name} | {row.system.measured:,.0f}/s | {row.rate:,.0f}/s | "
            f"{'' if calibrates else f'{off:+.1f} %'} | {1000 * row.step_s:.2f} ms | "
            f"{1000 * row.computing_s:.2f} ms | {f'calibrates: {factor:.2f}' if calibrates else hit} |"
        )
    return lines


def _said(trainings: Sequence[tuple[Any, Mapping[str, float]]]) -> str:
    """A sentence on hits, and one for each miss."""
    missed = [
        (one, off)
        for one, found in trainings
        if abs(off := 100 * (found["efficiency"] - one.measured)) > NEAR
    ]
    lines = [f"{len(trainings) - len(missed)} of {len(trainings)} are hits."]
    for one, off in missed:
        way = "too high" if off > 0 else "too low"
        lines.append(f"{one.name} is predicted {abs(off):.1f} points {way}.")
    for one, found in trainings:
        lost, measured = 1 - found["efficiency"], 1 - one.measured
        if all(one is not other for other, _ in missed) and not measured / 2 <= lost <= 2 * measured:
            lines.append(
                f"That says little of {one.name}: {measured:.1%} were lost, and {lost:.1%} is predicted."
            )
    return " ".join(lines)


def _reached(filters: Mapping[int, Points], crossing: Callable[[Points, float], float | None]) -> list[str]:
    lines = []
    for count, wanted, words in ((4, 3.28, "four"), (3, 2.45, "three")):
        ratio = crossing(filters[count], wanted)
        if ratio is None:
            most = max(speed for _, speed in filters[count])
            lines.append(f"{wanted} with {words} devices is not reached: {most:.2f} at most.")
        else:
            rate = ratio * 50e9
            lines.append(
                f"{wanted} with {words} equal devices takes {1000 * ratio:.2g} bytes for each 1000 FLOPs: "
                f"{8 * rate / 1e9:.2g} Gbit/s for devices of 50 GFLOP/s."
            )
    return lines
