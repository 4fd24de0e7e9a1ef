"""`cingulum bench loader`: compare the loader with others, and with the limit of the machine."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, Any

import typer

from cingulum.cli.options import Data, Figures, Measured, Repeats, Threads, Volumes


class Cache(str, enum.Enum):
    """State of the kernel's page cache before an epoch."""

    cold = "cold"
    warm = "warm"
    both = "both"


class Stored(str, enum.Enum):
    """Stored type of the volumes."""

    float16 = "float16"
    float32 = "float32"


def bench_loader(
    size: Annotated[
        list[int] | None,
        typer.Option(help="Edge of the volumes, in voxels; may be repeated.  [default: 96, 128]"),
    ] = None,
    volumes: Volumes = 256,
    batch: Annotated[int, typer.Option(help="Volumes per batch.", min=1)] = 4,
    threads: Threads = 2,
    repeats: Repeats = 5,
    cache: Annotated[Cache, typer.Option(help="Page cache before an epoch.")] = Cache.both,
    dtype: Annotated[Stored, typer.Option(help="Stored type.")] = Stored.float16,
    codec: Annotated[str, typer.Option(help="Codec of our shards.")] = "blosc-lz4",
    reader: Annotated[
        list[str] | None, typer.Option(help="Measure ours, the limit and only these; may be repeated.")
    ] = None,
    data: Data = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Instead, draw throughput by volumes, threads and ranks into this PNG or SVG."),
    ] = None,
    dry_run: Measured = False,
    as_json: Figures = False,
) -> int:
    """Measure the throughput of batches of float32 volumes, every volume once in random order.

    All readers read the same volumes, one process each, in turn, with the page cache cold and warm.
    `limit_ratio` is our throughput over the machine's limit: the slowest of reading the stored bytes,
    decoding them, and casting them, each alone. `best_peer_ratio` is ours over that of the fastest other
    reader, of those that read files, and of those that keep volumes in memory. Both are the worst over sizes
    and page cache. Where the cache is cold, ours reads past it, as with a set larger than the memory.

    \b
    Example:
      cingulum bench loader --json
      cingulum bench loader --size 96 --cache warm --reader h5py
      cingulum bench loader --plot loader-throughput.png
    """
    import dataclasses
    import json

    from rich.console import Console

    from cingulum.bench.loader import studies

    study = studies.checked(
        sizes=size,
        volumes=volumes,
        batch=batch,
        threads=threads,
        repeats=repeats,
        cache=cache.value,
        dtype=dtype.value,
        codec=codec,
        readers=reader,
        data=data,
    )
    if plot is not None:
        studies.check_picture(plot)
    if dry_run:
        typer.echo(studies.told(study, sweeping=plot is not None))
        return 0
    from cingulum.bench.loader import measure, sweep

    with Console(stderr=True).status("starting") as status:
        if plot is None:
            figures = measure.loader(study, status.update)
            text = _table(figures)
        else:
            figures = sweep.scaling(dataclasses.replace(study, caches=("warm",)), status.update)
            text = f"{plot}: throughput by volumes, threads and ranks"
    if plot is None or as_json:
        typer.echo(json.dumps(figures, indent=2) if as_json else text)
    if plot is not None:
        _draw(figures, plot, shown=as_json)
        typer.echo(text, err=as_json)
    return 0


def _draw(figures: dict[str, Any], plot: Path, *, shown: bool) -> None:
    """Draw what was measured; where that fails, show it as numbers, unless it is `shown` already."""
    import json

    from cingulum.bench.loader import sweep

    try:
        sweep.draw(figures, plot)
    except Exception:
        if not shown:
            typer.echo(json.dumps(figures, indent=2))
        raise


def _table(figures: dict[str, Any]) -> str:
    lines = []
    for case in figures["cases"]:
        size, cache = case["size"], case["cache"]
        lines.append(f"{size}^3, page cache {cache}")
        for row in figures["readers"]:
            if (row["size"], row["cache"]) == (size, cache):
                lines.append(f"  {row['title']:42s} {_speed(row)}")
        lines.append(f"  limit_ratio      {_ratio(case, 'limit_ratio')}")
        if "first_epoch_limit_ratio" in case:
            lines[-1] += f"; through the page cache {_ratio(case, 'first_epoch_limit_ratio')}"
        lines += [
            f"  best_peer_ratio  {_ratio(best, 'ratio')}, {best['ours']} over {best['peer']}"
            for best in case["best_peers"].values()
        ]
        lines.append("")
    machine = figures["machine"]
    return "\n".join(
        [
            *lines,
            f"{figures['repeats']} repeats in turn, medians (from smallest to largest), "
            f"{figures['job']['threads']} threads; {machine['cpu']}, {machine['cores']} cores, "
            f"load {machine['load_1min']}, {machine['file_system']}",
        ]
    )


def _speed(row: dict[str, Any]) -> str:
    if "skipped" in row:
        return str(row["skipped"])
    speed = row["volumes_per_s"]
    text = f"{speed['median']:8.1f} volumes/s ({speed['min']:.1f} to {speed['max']:.1f})"
    text += f"  {row['bytes_per_s']['median'] / 2**20:6.0f} MiB/s"
    if "peak_memory_bytes" in row:
        text += f"  {row['peak_memory_bytes'] / 2**20:6.0f} MiB"
    return text


def _ratio(case: dict[str, Any], name: str) -> str:
    return f"{case[name]:.3f} ({case[name + '_min']:.3f} to {case[name + '_max']:.3f})"
