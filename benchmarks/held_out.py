#!/usr/bin/env python3
"""Predictions of networks, ranks, links and strategies that no calibration has seen, beside what they take.

    sudo .venv/bin/python benchmarks/held_out.py --first --out held_out.json --page prediction.md

Hosts and accelerators are emulated as in placement_on_hosts.py, which says how. One network is calibrated, on
one host and on two, on links of one rate: what waits, messages and updates take there. Then other networks
are trained on other hosts and links, by every strategy, and the seconds of a step are compared with
those of `cingulum simulate`, by the same code. Strategies by which ranks train the whole network do so with a
chain of waiting layers, of its weights and seconds.

Stopped and started again, it measures what `--out` does not hold yet.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import held_out_memory
import held_out_page
import held_out_predicting
import held_out_rank
import placement_on_hosts
import published_page

from cingulum.bench.processes import Contestant, Process
from cingulum.bench.scaling import launching
from jobs.testbed import Testbed
from trainer import atomic
from trainer.errors import CingulumError, InputError

HERE = Path(__file__).resolve()
# Width and edge of the volumes in voxels: what is calibrated, and what is judged.
CALIBRATED = {"model": "resnet18", "width": 16, "size": 32}
NETWORKS = (
    {"model": "unet3d", "width": 4, "size": 16},
    {"model": "resattnet18", "width": 16, "size": 32},
    {"model": "vgg", "width": 8, "size": 32},
)
CALIBRATED_RATE, RATES = "100mbit", ("50mbit", "200mbit")
RANKS = (4, 2, 8)
SAMPLES = 8
# Microseconds of each second (kernel.sched_rt_period_us) for what runs in real time.
REAL_TIME = Path("/proc/sys/kernel/sched_rt_runtime_us")
# It searches for minutes on more.
MOST_OF_HYPERGRAPH = 4


def ways(ranks: int) -> dict[str, list[dict[str, Any]]]:
    """Return the sections of strategies, by what can share a start of ranks."""
    divided: list[dict[str, Any]] = [
        {"name": "spatial"},
        {"name": "filters"},
        {"name": "hybrid", "micro_batches": 4},
    ]
    if ranks >= 4:
        divided.append({"name": "hybrid", "replicas": ranks // 2, "micro_batches": 2})
    servers = {"name": "parameter-server", "count": ranks, "placement": "colocated"}
    found = {"ranks": [*divided, {"name": "data"}], "servers": [servers]}
    return found if ranks > MOST_OF_HYPERGRAPH else {**found, "hypergraph": [{"name": "hypergraph"}]}


def label(section: dict[str, Any]) -> str:
    """Return what tells a strategy from another of the same hosts."""
    replicas = section.get("replicas", 1)
    return section["name"] + (f", {replicas} replicas" if replicas > 1 else "")


def cells(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return what to measure: a start of ranks each."""
    same = {"samples": SAMPLES, "gflops": args.gflops, "steps": args.steps, "first": args.first}
    found = [
        {**network, "ranks": ranks, "family": family, "rates": list(RATES), **same}
        for ranks in RANKS
        for network in NETWORKS
        for family in ways(ranks)
    ]
    # What takes minutes to be planned comes last.
    return sorted(found, key=lambda cell: cell["family"] == "hypergraph")


def started(cell: dict[str, Any], rates: list[str], folder: Path) -> Iterator[tuple[str, list[Any]]]:
    """Start a cell's hosts and ranks; yield a block of every rank on links of each rate, again and again."""
    cluster = Testbed.up(cell["ranks"], slurm=False, name=f"held-out-{os.getpid()}", tied=True, shared=folder)
    try:
        command = [sys.executable, str(HERE), "--on-rank", json.dumps(cell)]
        line = launching.on_testbed(cluster, dict.fromkeys(cluster.hosts, 1), command)
        ranks = Process("ranks", "mpirun", line, placement_on_hosts.QUIET)
        with Contestant(cell["family"], [ranks], stands_still=False) as contestant:
            contestant.warm_up()
            while True:
                for rate in rates:
                    for host in cluster.hosts:
                        cluster.shape(host, rate)
                    yield rate, contestant.block()[0]
    finally:
        cluster.down()


@contextlib.contextmanager
def packets_first(*, first: bool) -> Iterator[None]:
    """Let the kernel's threads that handle packets run before ranks in real time, which would starve them.

    Nor does the kernel stop what runs in real time for 50 ms of every second meanwhile, as it does otherwise
    wherever ranks that look for messages keep all cores busy: links then stand still as long.
    """
    names = {int(one.name): one / "comm" for one in Path("/proc").iterdir() if one.name.isdigit()}
    threads = []
    for number, name in names.items():
        with contextlib.suppress(OSError):  # it has ended
            if first and name.read_text().startswith("ksoftirqd/"):
                threads.append(number)
    before = REAL_TIME.read_text()
    try:
        for number in threads:
            os.sched_setscheduler(number, os.SCHED_FIFO, os.sched_param(2))
        if first:
            REAL_TIME.write_text("-1\n")
        yield
    finally:
        REAL_TIME.write_text(before)
        for number in threads:
            os.sched_setscheduler(number, os.SCHED_OTHER, os.sched_param(0))


def calibrate(args: argparse.Namespace) -> dict[str, Any]:
    """Return what one host and two take for the calibrated network, on links of the calibrated rate."""
    same = {**CALIBRATED, "samples": SAMPLES, "gflops": args.gflops, "steps": args.steps, "first": args.first}
    found: dict[str, Any] = {}
    for way, section in {"whole": {"name": "data"}, "divided": {"name": "spatial"}}.items():
        cell = {**same, "ranks": 1, "family": way, "ways": [{"section": section}], "blocks": 2}
        with tempfile.TemporaryDirectory() as folder:
            turns = started({**cell, "calibrates": way == "divided"}, [CALIBRATED_RATE], Path(folder))
            found[way] = [next(turns)[1] for _ in range(2)]
            if way == "divided":
                found["alone"] = next(turns)[1]
            turns.close()
    cell = {**same, "ranks": 2, "family": "links", "ways": [{"section": {"name": "spatial"}}], "blocks": 0}
    with tempfile.TemporaryDirectory() as folder:
        turns = started({**cell, "calibrates": True}, [CALIBRATED_RATE], Path(folder))
        found["links"] = [next(turns)[1] for _ in range(3)]
        turns.close()
    return found


def predict(
    cell: dict[str, Any], known: dict[str, Any], before: Sequence[dict[str, Any]] = ()
) -> list[dict[str, Any]]:
    """Return a row for each strategy of a cell that can train: its label, its section, what is predicted.

    Args:
        cell: a start of ranks.
        known: what was calibrated.
        before: rows of the cell that were predicted before: their plans are taken.
    """
    rows = []
    for section in ways(cell["ranks"])[cell["family"]]:
        row = next((one for one in before if one["section"] == section), {})
        try:
            told = row | held_out_predicting.planned(known, cell, section, row.get("plan"))
        except InputError as error:
            print(f"{label(section)}: {error}", file=sys.stderr)
            continue
        rows.append({"label": label(section), "section": section} | told)
    return rows


def measure(cell: dict[str, Any], rows: list[dict[str, Any]], repeats: int) -> None:
    """Add to each row what its ranks take on links of every rate."""
    for row in rows:
        with tempfile.TemporaryDirectory() as folder:
            given = row["section"]
            if row["plan"] is not None:
                path = Path(folder) / "plan.json"
                path.write_text(row["plan"])
                given = held_out_predicting.with_plan(given, path)
            blocks = repeats * len(cell["rates"])
            # Each way by ranks of its own: what one has opened would take the next one's time.
            going = {**cell, "ways": [{"section": given}], "blocks": blocks, "calibrates": False}
            turns = started(going, cell["rates"], Path(folder))
            measured: dict[str, list[Any]] = {rate: [] for rate in cell["rates"]}
            for rate, block in itertools.islice(turns, blocks):
                measured[rate].append(block)
            turns.close()
        row["measured"] = measured
        for rate, of_rate in measured.items():
            took, said = statistics.median(held_out_page.steps(of_rate)), row["simulated_s"][rate]
            told = f"{said:.3f} s predicted, {took:.3f} s measured, {said / took - 1:+.1%}"
            print(f"  {row['label']}, {rate}: {told}", file=sys.stderr, flush=True)


def main() -> int:
    """Calibrate, measure, keep all figures as JSON, and write the page's section."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    positive = placement_on_hosts.positive
    parser.add_argument("--gflops", type=positive(float), default=2.0, help="of an accelerator")
    parser.add_argument("--steps", type=int, default=5, help="per block; the first is not counted")
    parser.add_argument("--repeats", type=positive(int), default=1, help="blocks on links of each rate")
    parser.add_argument("--minutes", type=positive(float), help="begin nothing more after so many")
    parser.add_argument("--predict", action="store_true", help="by what is calibrated, and measure nothing")
    parser.add_argument("--first", action="store_true", help="ranks run in real time, before all else")
    parser.add_argument("--out", type=Path, default=Path("held_out.json"), help="all figures")
    parser.add_argument("--page", type=Path, help="write the section of this page")
    parser.add_argument("--on-rank", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.on_rank:
        held_out_rank.on_rank(args.on_rank)
        return 0
    if args.steps < 2:
        parser.error("--steps: take 2 or more: the first is not counted")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what is changed of the kernel is put back
    until = time.monotonic() + 60 * (args.minutes or 1e6)
    found = json.loads(args.out.read_text()) if args.out.exists() else {"calibration": None, "cells": []}

    def keep() -> None:
        atomic.write_text(args.out, json.dumps(found, indent=1) + "\n")

    if found["calibration"] is None:
        with packets_first(first=args.first):
            found |= {"calibration": calibrate(args), "calibrated_rate": CALIBRATED_RATE}
        keep()
    known = held_out_page.known(found["calibration"], CALIBRATED_RATE)
    print(json.dumps(known), file=sys.stderr)
    for cell in cells(args):
        row = next((one for one in found["cells"] if cell.items() <= one.items()), None)
        if time.monotonic() > until or (row is not None and "took_s" in row and not args.predict):
            continue
        print(f"{cell['model']}, {cell['ranks']} hosts, {cell['family']}", file=sys.stderr, flush=True)
        if row is None:
            row = {**cell, "rows": []}
            found["cells"].append(row)
        if args.predict or not row["rows"]:
            row["rows"] = predict(cell, known, row["rows"])
            keep()
        if args.predict:
            continue
        began = time.monotonic()
        try:
            with packets_first(first=args.first):
                measure(cell, row["rows"], args.repeats)
        except CingulumError as error:
            print(f"error: {error}", file=sys.stderr)
            continue
        row["took_s"] = time.monotonic() - began
        keep()
    if "memory" not in found and not args.predict and time.monotonic() < until:
        found["memory"] = held_out_memory.counted()
        keep()
    if not any(True for _ in held_out_page.cases(found["cells"])):
        return 0
    text = held_out_page.section(found["cells"], known, CALIBRATED_RATE, found.get("memory", ()))
    if args.page:
        before = args.page.read_text().partition(published_page.HELD_OUT)[0].rstrip("\n")
        atomic.write_text(args.page, before + published_page.HELD_OUT + text)
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
