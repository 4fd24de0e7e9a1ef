#!/usr/bin/env python3
"""How fast a network is that is divided over hosts with an accelerator each, on links of a stated rate.

    sudo .venv/bin/python benchmarks/placement_on_hosts.py --out placement_on_hosts.json

Hosts and accelerators are emulated. The hosts are namespaces of this machine, one rank on each (`cingulum
testbed`, needs root); they share its cores. The accelerators compute nothing and wait as long as one of
`--gflops` would (emulated_units.py). Messages, their buffers and their bytes are real. An
accelerator of 32 GFLOP/s at 1 Gbit/s has as many FLOPs for each byte as one of 8 TFLOP/s at 250 Gbit/s.

Every placement is timed on links of each rate and on links without a limit, where what is left beside waiting
for accelerators is this machine's own: its cores do the work of all hosts. Plain TCP streams round all hosts
say what each link carries while all others do, too. With `--first`, timed ranks and streams run in real time
(SCHED_RR), before all else: where others use the machine.

`data` is a chain of waiting layers with about the same weights (emulated_accelerator.py), on a
volume for each rank: its speed-up is that of volumes per second, the others' that of one volume.

Stopped and started again, it measures what `--out` does not hold yet.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import placement_rank
import placement_table
import ring_on_a_shaped_link

from cingulum.bench import workers
from cingulum.bench.processes import Contestant, Process
from cingulum.bench.scaling import launching
from jobs.testbed import Testbed
from jobs.testbed.layout import check_rate
from trainer import atomic
from trainer.bench import hardware
from trainer.bench.placement_worker import PlacementJob
from trainer.errors import CingulumError

HERE = Path(__file__).resolve()
STRATEGIES: dict[str, dict[str, Any]] = {
    "spatial": {"name": "spatial"},
    "filters": {"name": "filters", "mode": "masterless"},
    "data": {"name": "data"},
}
UNLIMITED = "unlimited"
STREAM_MIB = 64.0
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(HERE.parents[1])}


def job_of(cell: dict[str, Any]) -> PlacementJob:
    """Return what the ranks of a cell train: one volume, under `data` one on each rank."""
    section = STRATEGIES[cell["strategy"]]
    batch = cell["ranks"] if section["name"] == "data" else 1
    return PlacementJob(section, size=cell["size"], depth=cell["size"], width=cell["width"], batch=batch)


def cells(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return what to measure: each placement, whose links take every rate in turn."""
    same = {"size": args.size, "gflops": args.gflops, "steps": args.steps, "first": args.first}
    return [
        {"strategy": way, "width": width, "ranks": ranks, **same}
        for width in args.widths
        for way in args.strategies
        for ranks in args.ranks
    ]


def measure(
    cell: dict[str, Any],
    rates: Sequence[str],
    repeats: int,
    program: Path = HERE,
    *,
    shared: Path | None = None,
    streams: bool = True,
) -> dict[str, Any]:
    """Start a cell's hosts, and time its ranks on links of each rate.

    Args:
        cell: what is timed.
        rates: of links; links without a limit are added.
        repeats: blocks on each kind of link.
        program: of the ranks.
        shared: a folder that all hosts see.
        streams: time plain streams, too.
    """
    links = [None] if cell["ranks"] == 1 else [*rates, None]
    cluster = Testbed.up(
        cell["ranks"], slurm=False, name=f"placement-{os.getpid()}", tied=True, shared=shared
    )
    try:
        command = [sys.executable, str(program), "--on-rank", json.dumps(cell)]
        line = launching.on_testbed(cluster, dict.fromkeys(cluster.hosts, 1), command)
        found: dict[str, list[Any]] = {rate or UNLIMITED: [] for rate in links}

        def shape(rate: str | None) -> None:
            for host in cluster.hosts:
                cluster.shape(host, rate)

        # Their process ids are those of the hosts: they are not stopped between blocks.
        with Contestant(cell["strategy"], [Process("ranks", "mpirun", line, QUIET)], stands_still=False) as r:
            r.warm_up()

            def block(rate: str | None) -> None:
                shape(rate)
                found[rate or UNLIMITED] += r.block()

            workers.in_turn([functools.partial(block, rate) for rate in links], repeats, lambda *_: None)
        carried = {}
        for rate in links if streams and len(cluster.hosts) > 1 else []:
            shape(rate)
            carried[rate or UNLIMITED] = _stream_bits(cluster, first=cell["first"])
    finally:
        cluster.down()
    return {**cell, "blocks": found, "streams_bits_s": carried, "machine": hardware.here()}


def _stream_bits(cluster: Testbed, *, first: bool) -> list[float]:
    """Return bits per second that each host sends to the next one while all others do, too, by repeat."""
    wanted = {"mib": [STREAM_MIB], "repeats": 3}
    placement_rank.run_first(first=first)
    try:
        found = ring_on_a_shaped_link.measure_peer(cluster, cluster.hosts, "streams", wanted)
    finally:
        placement_rank.run_first(first=False)
    hosts = len(cluster.hosts)
    return [8 * 2 * (hosts - 1) / hosts * STREAM_MIB * 2**20 / second for second in found[str(STREAM_MIB)]]


def positive(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return what reads an argument as a number above 0."""

    def read(text: str) -> Any:
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"{text}: take a number above 0")
        return value

    return read


def link_rate(text: str) -> str:
    """Return an argument that is a rate of links."""
    try:
        return check_rate(text)
    except CingulumError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def main() -> int:
    """Measure, keep all figures as JSON, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    number = positive(int)
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=list(STRATEGIES))
    parser.add_argument("--ranks", nargs="+", type=number, default=[1, 2, 4, 8], help="one on each host")
    parser.add_argument("--rates", nargs="+", type=link_rate, default=["1gbit", "10gbit"], help="of links")
    parser.add_argument("--widths", nargs="+", type=number, default=[16], help="of ResNet-18 (default: 16)")
    parser.add_argument("--size", type=number, default=96, help="edge of the volumes, in voxels")
    parser.add_argument("--gflops", type=positive(float), default=32.0, help="of an accelerator")
    parser.add_argument("--steps", type=number, default=8, help="per block; the first is not counted")
    parser.add_argument("--repeats", type=number, default=3, help="blocks on each kind of link")
    parser.add_argument(
        "--first",
        action="store_true",
        help="ranks run in real time, before all else: where others use the machine",
    )
    parser.add_argument("--out", type=Path, default=Path("placement_on_hosts.json"), help="all figures")
    parser.add_argument("--table", type=Path, help="write the table, in Markdown")
    parser.add_argument("--json", action="store_true", help="print all figures, not the table")
    parser.add_argument("--on-rank", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.on_rank:
        placement_rank.on_rank(args.on_rank, job_of(args.on_rank))
        return 0
    if args.steps < 2:
        parser.error("--steps: take 2 or more: the first is not counted")
    rows = json.loads(args.out.read_text()) if args.out.exists() else []
    asked = cells(args)
    try:
        for number, cell in enumerate(asked, start=1):
            if any(holds(row, cell, args.rates, args.repeats) for row in rows):
                continue
            said = f"{number}/{len(asked)}: {cell['strategy']}, width {cell['width']}, {cell['ranks']} hosts"
            print(said, file=sys.stderr, flush=True)
            row = measure(cell, args.rates, args.repeats)
            rows = [one for one in rows if not cell.items() <= one.items()] + [row]
            atomic.write_text(args.out, json.dumps(rows, indent=1) + "\n")
    except CingulumError as error:
        raise SystemExit(f"error: {error}") from None
    mine = [next(row for row in rows if cell.items() <= row.items()) for cell in asked]
    lines = placement_table.table(mine)
    if args.table:
        args.table.write_text("\n".join(lines) + "\n")
    print(json.dumps(mine, indent=2) if args.json else "\n".join(lines))
    return 0


def holds(row: dict[str, Any], cell: dict[str, Any], rates: Sequence[str], repeats: int) -> bool:
    """Whether a row has all blocks that are asked for of a cell."""
    links = [UNLIMITED] if cell["ranks"] == 1 else [*rates, UNLIMITED]
    return cell.items() <= row.items() and all(len(row["blocks"].get(rate, ())) >= repeats for rate in links)


if __name__ == "__main__":
    sys.exit(main())
