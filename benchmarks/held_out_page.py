"""What held_out.py has found, as a section of the page on predictions."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import held_out_memory
import stages_on_hosts

from trainer.bench.spreads import spread

# Steps within so much of each other have no order.
ALIKE = 1.05
INTRODUCTION = """
<!-- not run: more than half an hour, as root -->
```sh
sudo .venv/bin/python benchmarks/held_out.py --first --out held_out.json --page prediction.md
```

makes this section. Hosts are emulated, with an accelerator each that computes nothing and waits as long as
one of {gflops:g} GFLOP/s would; messages are real. **Calibrated** on one host and on two, with ResNet-18 of
width 16 at 32 x 32 x 32 and links of {rate}: what a wait, a task, an update and a message take there besides,
and what a link carries ({carried:.1%} of its rate, {latency:.2f} ms for a message). Nothing else is known of
the cases: other networks, other links, up to eight hosts, every strategy. They are predicted by the code of
[`cingulum simulate`](../how-to/simulate.md), {samples} samples in an update. Strategies by which every rank
trains the whole network do so with a chain of waiting layers, of the network's weights and seconds.
`hypergraph` is left out on eight hosts, where it searches for minutes. What is missed, and why:
[decision 58](decisions/0058-simulator.md#held-out-cases).
"""


class Case(NamedTuple):
    """A strategy on hosts with links of a rate: seconds of a step."""

    network: str
    ranks: int
    rate: str
    label: str
    predicted: float
    measured: dict[str, float]

    @property
    def took(self) -> float:
        """Median seconds of a step."""
        return self.measured["s"]

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted / self.took - 1


def steps(blocks: list[Any]) -> list[float]:
    """Return seconds of every counted step, until all ranks that compute have done it."""
    # One that has nothing to do may begin a block late, which holds nobody up.
    compute = [[rank for rank in block if rank["planned_s"]] for block in blocks]
    return stages_on_hosts.steps({"blocks": {"": compute}}, "")


def known(calibration: dict[str, Any], rate: str) -> dict[str, Any]:
    """Return what predictions go by, from what was measured on one host and on two.

    Args:
        calibration: of `held_out.calibrate`.
        rate: of the links of the two.
    """
    links = [rank for block in calibration["links"] for rank in block]
    update_s = statistics.median(rank["update_s"] for rank in calibration["alone"])
    latency, carried = (statistics.median(one["link"][at] for one in links) for at in (0, 1))
    found: dict[str, Any] = {
        "update_s": update_s,
        "update_s_per_parameter": update_s / calibration["alone"][0]["parameters"],
        "latency_s": latency,
        "carried": 8 * carried / stages_on_hosts.bits_per_second(rate),
        "handling": {
            key: statistics.median(value for one in links for value in one["handling"][key])
            for key in ("message_s", "byte_s")
        },
    }
    for way, key, which in (("whole", "wait_s", 0), ("divided", "task_s", 1)):
        step, rank = statistics.median(steps(calibration[way])), calibration[way][0][0]
        found[key] = max(0.0, step - update_s - rank["planned_s"]) / rank["calls"][which]
    return found


def known_of(path: Path) -> dict[str, Any]:
    """Return what predictions go by, of the file that held_out.py has written."""
    found = json.loads(path.read_text())
    return known(found["calibration"], found["calibrated_rate"])


def cases(cells: Sequence[dict[str, Any]]) -> Iterator[Case]:
    """Yield what was measured."""
    for cell in cells:
        for row in cell["rows"]:
            for rate, blocks in row.get("measured", {}).items():
                took = spread("s", steps(blocks))
                yield Case(cell["model"], cell["ranks"], rate, row["label"], row["simulated_s"][rate], took)


def order(some: Sequence[Case]) -> tuple[int, int, int, int]:
    """Return how many pairs of strategies on the same hosts have the order predicted, of how many.

    Returns:
        Of all pairs, then of those that differ by more than 5 %: in order, and all of them.
    """
    kept = [0, 0, 0, 0]
    for group in _together(some):
        for one, other in itertools.combinations(group, 2):
            same = (one.predicted < other.predicted) == (one.took < other.took)
            far = max(one.took, other.took) > ALIKE * min(one.took, other.took)
            for place, counts in enumerate((same, True, same and far, far)):
                kept[place] += counts
    return tuple(kept)  # type: ignore[return-value]


def chosen(some: Sequence[Case]) -> list[float]:
    """Return, for each network, hosts and links, what the strategy of the shortest predicted step takes over
    what the fastest takes.
    """
    fastest = (
        (min(group, key=lambda one: one.predicted).took, min(one.took for one in group))
        for group in _together(some)
    )
    return [took / best for took, best in fastest]


def _together(some: Sequence[Case]) -> Collection[list[Case]]:
    """The strategies of each network, hosts and links."""
    groups: dict[tuple[str, int, str], list[Case]] = {}
    for one in some:
        groups.setdefault((one.network, one.ranks, one.rate), []).append(one)
    return groups.values()


def section(cells: Sequence[dict[str, Any]], known: dict[str, Any], rate: str, memory: Sequence[Any]) -> str:
    """Return the section, in Markdown, without its heading."""
    some = sorted(cases(cells), key=lambda one: (one.network, one.ranks, bits(one.rate)))
    first = cells[0]
    lines = INTRODUCTION.format(
        gflops=first["gflops"], rate=rate, carried=known["carried"],
        latency=1e3 * known["latency_s"], samples=first["samples"],
    ).splitlines()  # fmt: skip
    lines += ["", *_summary(some), "", *_table(some)]
    if memory:
        lines += ["", *_memory(memory)]
    return "\n".join(lines) + "\n"


def bits(rate: str) -> float:
    """Return a rate as a number."""
    return stages_on_hosts.bits_per_second(rate)


def _summary(some: Sequence[Case]) -> list[str]:
    lines = [
        "| strategy | cases | mean error | median of predicted / measured | worst |",
        "| --- | --- | --- | --- | --- |",
    ]
    names = dict.fromkeys(one.label.split(",")[0] for one in some)
    for name in [*names, "all"]:
        mine = [one for one in some if name in ("all", one.label.split(",")[0])]
        worst = max(mine, key=lambda one: abs(one.error))
        lines.append(
            f"| {f'**{name}**' if name == 'all' else name} | {len(mine)} "
            f"| {statistics.mean(abs(one.error) for one in mine):.1%} "
            f"| {math.exp(statistics.median(math.log(1 + one.error) for one in mine)):.3f} "
            f"| {worst.error:+.1%}: {worst.label}, {worst.network}, {worst.ranks} hosts, {worst.rate} |"
        )
    hosts = sorted({one.ranks for one in some})
    lines += [
        "",
        "| hosts | cases | mean error | of `data` | without servers |",
        "| --- | --- | --- | --- | --- |",
    ]
    for ranks in hosts:
        on = [one for one in some if one.ranks == ranks]
        means = [
            f"{statistics.mean(abs(one.error) for one in of):.1%}"
            for of in (
                on,
                [one for one in on if one.label == "data"],
                [one for one in on if one.label != "parameter-server"],
            )
        ]
        lines.append(f"| {ranks} | {len(on)} | {' | '.join(means)} |")
    kept, pairs, clear, differ = order(some)
    ratios = chosen(some)
    lines += [
        "",
        f"**Order of strategies**: {kept} of {pairs} pairs on the same hosts and links are in the order that "
        f"was predicted; of those whose steps differ by more than 5 %, {clear} of {differ}.",
        "",
        f"**The choice**: the strategy that is predicted to be the fastest is within 5 % of the fastest that "
        f"was measured for {sum(one <= ALIKE for one in ratios)} of {len(ratios)} networks, hosts and links; "
        f"at most {max(ratios) - 1:.1%} are lost.",
    ]
    return lines


def _table(some: Sequence[Case]) -> list[str]:
    lines = [
        "| network | hosts | links | strategy | predicted, s | measured, s (lowest, highest) | error |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {one.network} | {one.ranks} | {one.rate} | {one.label} | {one.predicted:.3f} "
        f"| {one.took:.3f} ({one.measured['s_min']:.3f}, {one.measured['s_max']:.3f}) | {one.error:+.1%} |"
        for one in some
    ]
    return lines


def _memory(rows: Sequence[Any]) -> list[str]:
    errors = [abs(held_out_memory.off(row)) for row in rows]
    return [
        "### Memory",
        "",
        "On ranks of one host that compute, of the rank that keeps most. Counted: blocks of variables, and "
        "of what is there when the forward pass is done.",
        "",
        *held_out_memory.table(list(rows)),
        "",
        f"Over all {len(errors)} ranks: {statistics.mean(errors):.1%} on average, {max(errors):.1%} at most.",
    ]
