"""One cell of a study, measured: on this host, or on emulated hosts of a testbed with a shaped link.

What crosses each host's interface is read from the kernel's own counters right before the timed steps and
right after them, and corrected for nothing: Horovod's and MPI's own messages are in it. On a testbed whose
links are shaped, hosts send frames of at most an MTU, as network cards do; an emulated link would otherwise
carry packets of 64 kB with one header each, and the counters would miss headers that the shaping charges for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pydantic

from cingulum.bench.processes import Process, Running
from cingulum.bench.scaling import launching
from jobs.testbed import Testbed, namespaces, programs
from jobs.testbed.layout import bytes_per_second
from trainer.bench import hardware
from trainer.bench.scaling.cells import PARTS, Cell, Counters, MeasuredCell
from trainer.bench.scaling.variants import OTHERS
from trainer.config.explaining import explain
from trainer.config.strategy import BY_NAME
from trainer.errors import CingulumError, ConfigError, WorldError

Progress = Callable[[str], None]

_START_S = 900.0  # eight ranks that share two cores with others take minutes
_QUEUE = 300  # frames that wait at the switch for one host
_MANY = 65535  # frames that an emulated card takes at once, by itself
# A cell that takes so many times what was predicted hangs.
_PATIENCE = 20.0
_SLACK_S = 120.0


def measure(
    cell: Cell, testbed: Testbed | None, progress: Progress, *, hosts: Sequence[str] | None = None
) -> MeasuredCell:
    """Time a cell's steps, and count what crosses the interfaces meanwhile.

    Args:
        cell: of strategy `data`, synchronous `parameter-server` or one of `OTHERS`, and no training.
        testbed: emulated hosts, as many as `cell.machines` or more; their links are shaped to
            `cell.bandwidth` and stay so. None for a cell on this host, or on real ones.
        progress: gets a line with the prediction before the steps are timed, and one with the result.
        hosts: names of real hosts, such as an allocation's; their interfaces are not read.

    Returns:
        The row; with `error` where the cell's processes failed or did not end in time.

    Raises:
        ConfigError: a cell that cannot be measured so.
    """
    other = OTHERS.get(cell.strategy)
    if other is None:
        _check(cell)
    names = tuple((testbed.hosts if testbed else hosts or ())[: cell.machines])
    try:
        with _shaped(testbed, names, cell.bandwidth):
            if other is not None:
                row: MeasuredCell = other.measure(
                    cell, testbed, progress, count=lambda: _count(testbed, names)
                )
                return row
            return _run(cell, testbed, names, progress)
    except CingulumError as error:
        return MeasuredCell(cell, machine=hardware.here(), error=str(error))


def _named(hosts: Sequence[str], predicted: dict[str, Any]) -> dict[str, Any]:
    """What was predicted, with names of hosts in place of their numbers."""
    by_host = {
        what: dict(zip(hosts, each, strict=True))
        for what, each in predicted.items()
        if what in ("interfaces", "payload")
    }
    return predicted | by_host


def _check(cell: Cell) -> None:
    section = BY_NAME[cell.strategy]
    if section.divides_network or cell.train or cell.options.get("mode") == "async":
        raise ConfigError(f"This cell cannot be timed: {cell.describe()}.")
    try:
        section.model_validate({**cell.options, **({"count": cell.servers} if section.has_servers else {})})
    except pydantic.ValidationError as error:
        raise ConfigError(explain("options", error.errors()[0], section)) from error


@contextlib.contextmanager
def _shaped(testbed: Testbed | None, hosts: Sequence[str], bandwidth: str | None) -> Iterator[None]:
    """Shape the links; and where they have a rate, hosts send single frames until the end."""
    if testbed is None:
        yield
        return
    switch = namespaces.need(testbed.folder, namespaces.SWITCH)
    for host in hosts:
        # Acknowledgements wait in it, too: the default of 1000 frames is a quarter of a second at 50 Mbit/s.
        line = ["ip", "link", "set", "dev", host, "txqueuelen", str(_QUEUE)]
        programs.run(
            ["nsenter", "--target", str(switch), "--net", *line], f"setting the length of the queue to {host}"
        )
        testbed.shape(host, bandwidth)
    try:
        if bandwidth:
            _send_frames(testbed, hosts, 1)
        yield
    finally:
        if bandwidth:
            _send_frames(testbed, hosts, _MANY)


def _send_frames(testbed: Testbed, hosts: Sequence[str], at_once: int) -> None:
    for host in hosts:
        line = ["ip", "link", "set", "dev", "eth0", "gso_max_segs", str(at_once)]
        if (done := testbed.exec(host, line, cwd="/")).returncode:
            raise WorldError(f"{host}: the frames of its link cannot be limited: {done.stderr.strip()}")


def _run(cell: Cell, testbed: Testbed | None, hosts: Sequence[str], progress: Progress) -> MeasuredCell:
    program = [sys.executable, "-m", "trainer.bench.scaling.worker", json.dumps(dataclasses.asdict(cell))]
    if cell.bandwidth:
        program.append(str(bytes_per_second(cell.bandwidth)))
    line, environment = launching.command(cell, program, testbed=testbed, hosts=hosts)
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **environment}
    started = [Process("cell", f"{cell.processes} processes", line, environment)]
    with Running(started, end_s=_SLACK_S) as running:

        def hear(word: str, seconds: float) -> Any:
            (text,) = running.hear(started, seconds, f"{word} ").values()
            return json.loads(text)

        ready = hear("ready", _START_S)
        predicted = _named(hosts, ready["predicted"])
        expected = predicted.get("step_s", ready["compute_s"])
        progress(f"{cell.describe()}: predicted {expected:.3f} s a step")
        before = _count(testbed, hosts)
        running.say("go")
        hear("timed", _SLACK_S + _PATIENCE * expected * cell.steps)
        after = _count(testbed, hosts)
        ranks = hear("found", _SLACK_S)
    row = MeasuredCell.of_steps(cell, [rank["seconds"] for rank in ranks], before, after)
    progress(f"{cell.describe()}: measured {row.step_s['median']:.3f} s a step")
    return dataclasses.replace(
        row,
        timeline={part: statistics.mean(rank["parts"][part] for rank in ranks) for part in PARTS},
        predicted=predicted,
        facts={
            **row.facts,
            "gradient_bytes": ready["gradient_bytes"],
            "compute_s": ready["compute_s"],
            "hosts": len({rank["host"] for rank in ranks}),
            "servers": ranks[0]["servers"],
        },
    )


def _count(testbed: Testbed | None, hosts: Sequence[str]) -> Counters:
    """Bytes that each host's interface has sent and received so far."""
    if testbed is None:
        return {}
    # From outside, by the process that holds the host's network: no command runs there, no byte is sent.
    tables = {
        host: Path(f"/proc/{namespaces.need(testbed.folder, host)}/net/dev").read_text() for host in hosts
    }
    return {host: interface_bytes(table) for host, table in tables.items()}


def interface_bytes(table: str, interface: str = "eth0") -> tuple[int, int]:
    """Return the bytes sent and received, from the text of /proc/net/dev.

    Raises:
        WorldError: there is no such interface.
    """
    for line in table.splitlines():
        name, colon, numbers = line.partition(":")
        if colon and name.strip() == interface:
            fields = numbers.split()
            return int(fields[8]), int(fields[0])
    raise WorldError(f"There is no network interface {interface}.")
