"""Measure the cells of a study that are missing, one after the other, each where it belongs."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from jobs.schedulers import registry
from jobs.testbed import Testbed, layout
from trainer.bench.scaling import page
from trainer.bench.scaling.cells import Cell, MeasuredCell
from trainer.bench.scaling.results import StudyResults
from trainer.bench.scaling.study import Study
from trainer.errors import CingulumError, InputError
from trainer.progress import Counting


class Measure(Protocol):
    """Measures one cell."""

    def __call__(
        self,
        cell: Cell,
        testbed: Testbed | None,
        progress: Callable[[str], None],
        *,
        hosts: Sequence[str] | None = None,
    ) -> MeasuredCell:
        """See `measure.measure`."""


def conduct(
    study: Study, results: StudyResults, *, retry: bool, measure: Measure, train: Measure
) -> list[MeasuredCell]:
    """Measure what is missing, write the page anew after each cell, and return the new rows.

    A cell that fails becomes a row with its error. Rows that were measured stay, whatever ends the study.

    Args:
        study: what was asked for.
        results: opened for writing.
        retry: measure failed cells again.
        measure: times a cell with synthetic batches.
        train: trains a cell whose `epochs` are not 0.

    Raises:
        CingulumError: the testbed did not come up.
        OSError: the folder cannot be written to.
    """
    studies = results.note(study)
    cells = study.cells()
    todo = results.missing(cells, retry=retry)
    added: list[MeasuredCell] = []
    with contextlib.ExitStack() as stack:
        counting = stack.enter_context(Counting("measuring", "cells"))
        nodes = allocation()
        testbed = stack.enter_context(_testbed(todo, results.folder)) if nodes is None else None
        counting.show(len(cells) - len(todo), len(cells))
        for number, cell in enumerate(todo, start=1):
            started = time.monotonic()
            row = _row(train if cell.train else measure, cell, testbed, counting.note, nodes)
            took = round(time.monotonic() - started, 1)
            row = dataclasses.replace(row, facts={**row.facts, "took_s": took})
            results.add(row)
            added.append(row)
            page.save(studies, results.rows, results.folder, pictures=False)
            if row.error is not None or cell.train:  # else `measure` has printed it
                counting.note(f"{cell.describe()}: {_outcome(row)}", "red" if row.error else "")
            counting.show(len(cells) - len(todo) + number, len(cells))
    return added


def _row(
    measure: Measure,
    cell: Cell,
    testbed: Testbed | None,
    progress: Callable[[str], None],
    nodes: Sequence[str] | None,
) -> MeasuredCell:
    try:
        return measure(cell, testbed if cell.hosts else None, progress, hosts=nodes)
    except Exception as error:  # whatever it is, the other cells are worth having
        said = error.message if isinstance(error, CingulumError) else f"{type(error).__name__}: {error}"
        return MeasuredCell(cell, error=said)


def _outcome(row: MeasuredCell) -> str:
    if row.error is not None:
        return f"failed: {row.error.strip().splitlines()[-1] if row.error.strip() else 'no message'}"
    return f"{row.samples_per_second:.2f} samples/s"


def allocation() -> tuple[str, ...] | None:
    """Return the nodes of the allocation that this process is in; None outside of one."""
    found = registry.allocation()
    return None if found is None else found.hosts


def check(study: Study) -> None:
    """Check that the study's cells can be measured here.

    Raises:
        InputError: no cell at all, more hosts than the allocation has, or a link of it that is to be shaped.
        JobError: a rate or a number of hosts that no testbed can have.
    """
    cells = study.cells()
    if not cells:
        raise InputError(
            "Nothing to measure: asynchronous servers and divided networks are trained only.",
            cure="Add --epochs 5 for accuracy against time, or another strategy.",
        )
    most = max(cell.machines for cell in cells)
    nodes = allocation()
    if nodes is None:
        for rate in study.bandwidths:
            layout.Settings(hosts=max(most, 1), bandwidth=rate, cpus_per_host=study.cpus, slurm=False)
        if not most and (study.cpus is not None or any(study.bandwidths)):
            raise InputError(
                "--bandwidth and --cpus-per-host are for emulated hosts.",
                cure=f"Add --hosts, for example --hosts {max(study.ranks)}.",
            )
        return
    if most > len(nodes):
        raise InputError(
            f"--hosts: {most} are needed, with those of separate servers; this allocation has {len(nodes)}.",
            cure=f"Ask for {most} nodes, or for fewer --hosts or servers/placement=colocated.",
        )
    if any(study.bandwidths) or study.cpus is not None:
        raise InputError(
            "--bandwidth, --cpus-per-host: the links and cores of an allocation's nodes cannot be limited.",
            cure="Leave them out, or run outside of an allocation, on emulated hosts.",
        )


@contextlib.contextmanager
def _testbed(cells: Sequence[Cell], folder: Path) -> Iterator[Testbed | None]:
    """Emulated hosts for those cells that need them, taken down afterwards; None where none does."""
    hosts = max((cell.machines for cell in cells), default=0)
    if not hosts:
        yield None
        return
    seen = [Path.cwd(), Path(sys.prefix), Path(sys.base_prefix), folder.resolve(), Path(__file__).parents[3]]
    testbed = Testbed.up(
        hosts,
        slurm=False,
        cpus_per_host=next((cell.cpus for cell in cells if cell.hosts), None),
        shared=[path for path in dict.fromkeys(seen) if path not in layout.PRIVATE],
        name=f"scaling-{os.getpid()}",
        tied=True,  # ends with us, also by kill -9
    )
    try:
        yield testbed
    finally:
        testbed.down()
