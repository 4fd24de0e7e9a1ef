"""How fast a training step is: two ranks against two copies, our loop against Keras' own, ways to reduce.

Every process has one compute thread. What is compared is measured in turn, in many short blocks, and the
median of the repeats' ratios is reported with their spread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from cingulum.bench import workers
from cingulum.bench.processes import Contestant, Process
from trainer import processor
from trainer.bench import hardware
from trainer.bench.convolutions import KINDS, ConvolutionJob
from trainer.bench.spreads import ratios, spread, widest
from trainer.bench.step_worker import StepJob

MIB = 2**20
Progress = Callable[[str], None]


class Others(contextlib.AbstractContextManager[Any], Protocol):
    """What is timed beside ours, in the same repeats; leaving it ends what it has started."""

    @property
    def ways(self) -> Sequence[Callable[[], None]]:
        """What times one block each."""

    def start(self, tell: Progress) -> None:
        """Start all of it, and let it warm up."""

    def figures(self, ours_s: Sequence[float]) -> dict[str, Any]:
        """Return what was found, beside seconds per step of our two ranks in the same repeats."""

    def told(self, figures: Mapping[str, Any]) -> list[str]:
        """Return the same in lines of text."""


# What compares with others adds them here (benchmarks/beside_peers.py).
OTHERS: list[Callable[[StepJob], Others]] = []

# What `ring` compares: name, options of the optimizer, Horovod's settings.
REDUCTIONS: tuple[tuple[str, dict[str, Any], dict[str, str]], ...] = (
    ("grouped", {"reduction": "grouped"}, {}),
    ("per tensor", {"reduction": "per_tensor"}, {}),
    ("per tensor, fused up to 1 MiB", {"reduction": "per_tensor"}, {"HOROVOD_FUSION_THRESHOLD": str(MIB)}),
    ("buckets of 1 MiB", {"bucket_mb": 1.0}, {}),
    ("buckets of 4 MiB", {"bucket_mb": 4.0}, {}),
    ("buckets of 1 MiB, cycle 5 ms", {"bucket_mb": 1.0}, {"HOROVOD_CYCLE_TIME": "5"}),
    # What Open MPI does unless told otherwise; see SETTINGS in trainer/ranks/launch.py.
    ("buckets of 1 MiB, TCP put", {"bucket_mb": 1.0}, {"OMPI_MCA_btl_tcp_flags": "send,put,inplace"}),
)


def step(
    job: StepJob,
    *,
    repeats: int,
    progress: Callable[[int, int], None],
    tell: Progress,
    others: Sequence[Others] = (),
    overhead: bool = True,
    within: float = 0.0,
) -> dict[str, Any]:
    """Measure the efficiency of two ranks, our loop's overhead, and what is compared, in the same run.

    All processes are started once; then each kind trains a block of steps in turn, in another sequence in
    each repeat, while all others stand still. The first step of a block is not counted: processes that have
    stood still do not begin at the same moment, and those that train together wait for each other then.

    Args:
        job: what to time.
        repeats: blocks of each kind, at most.
        progress: told how many blocks of how many are done.
        tell: told what is being started.
        others: are timed, too.
        overhead: time our loop and Keras' own, too.
        within: half the width of an interval that is narrow enough: when all of them are, measuring ends.

    Returns:
        `efficiency`: throughput of two ranks over that of two single-rank copies run at once;
        `waiting_limit`: the same if two ranks cost nothing but that each step of the copies lasted as long as
        that of the slower one; `overhead`, if asked: our loop's time over that of Keras' `fit`, minus 1;
        each as `spread` tells it; step times in seconds, and the machine; what `others` have found;
        `convolutions`, as that function returns them.
    """
    ranks_s, copies_s, slower_s = [], [], []
    ours_s, keras_s = [], []
    with contextlib.ExitStack() as stack:

        def started(contestant: Contestant) -> Contestant:
            tell(f"starting {contestant.title}")
            stack.enter_context(contestant)
            contestant.warm_up()
            return contestant

        one_more = dataclasses.replace(job, steps=job.steps + 1)
        ranks = started(Contestant("two ranks", [workers.ranks(one_more, "cingulum", 2)]))
        copies = started(Contestant("two copies", _copies(one_more, 2)))
        for other in others:
            stack.enter_context(other)
            other.start(tell)

        def measure_ranks() -> None:
            ((first, second),) = ranks.block()
            ranks_s.append(statistics.mean([*first[1:], *second[1:]]))

        def measure_copies() -> None:
            (first,), (second,) = copies.block()
            copies_s.append(statistics.mean([*first[1:], *second[1:]]))
            slower_s.append(statistics.mean(map(max, first[1:], second[1:])))

        ways = [measure_ranks, measure_copies]
        if overhead:
            alone = dataclasses.replace(job, kind="overhead")
            in_turn = started(Contestant("our loop and Keras in turn", _copies(alone, 1)))

            def measure_overhead() -> None:
                (((mine, theirs),),) = in_turn.block()
                ours_s.append(mine / job.steps)
                keras_s.append(theirs / job.steps)

            ways.append(measure_overhead)
        ways += [way for other in others for way in other.ways]

        def found() -> dict[str, Any]:
            return {
                **spread("efficiency", ratios(copies_s, ranks_s)),
                **spread("waiting_limit", ratios(copies_s, slower_s)),
                **_overhead(ours_s, keras_s),
                "two_ranks_step_s": statistics.median(ranks_s),
                "two_copies_step_s": statistics.median(copies_s),
                **{name: figure for other in others for name, figure in other.figures(ranks_s).items()},
            }

        done = workers.in_turn(ways, repeats, progress, lambda: widest(found()) <= within)
    return {
        **found(),
        "repeats": done,
        "convolutions": convolutions(repeats=min(repeats, 7), tell=tell),
        "job": dataclasses.asdict(job),
        "machine": hardware.here(),
    }


def convolutions(*, repeats: int, tell: Progress) -> dict[str, dict[str, float]]:
    """Measure layers with oneDNN and without it, which is what `trainer.processor` decides on.

    Args:
        repeats: blocks of each way, in turn.
        tell: told what is being started.

    Returns:
        For each kind of layer medians of `onednn_s` and `eigen_s`, seconds of forward and backward on one
        thread, and of `gain`, the quotient of the two, with its spread.
    """
    seconds: dict[str, list[list[float]]] = {"1": [], "0": []}
    with contextlib.ExitStack() as stack:
        ways = []
        for setting, name in (("1", "layers with oneDNN"), ("0", "layers without oneDNN")):
            tell(f"starting {name}")
            one_way = workers.process(ConvolutionJob(), "cingulum", name, {processor.ONEDNN: setting})
            contestant = stack.enter_context(Contestant(name, [one_way]))
            contestant.warm_up()
            ways.append((seconds[setting], contestant))

        def measure(times: list[list[float]], contestant: Contestant) -> None:
            ((block,),) = contestant.block()
            times.append(block)

        workers.in_turn([partial(measure, *way) for way in ways], repeats, lambda done, total: None)
    figures = {}
    for at, (kind, *_) in enumerate(KINDS):
        onednn, eigen = ([block[at] for block in seconds[setting]] for setting in ("1", "0"))
        figures[kind] = {
            "onednn_s": statistics.median(onednn),
            "eigen_s": statistics.median(eigen),
            **spread("gain", ratios(eigen, onednn)),
        }
    return figures


def _overhead(ours_s: Sequence[float], keras_s: Sequence[float]) -> dict[str, float]:
    if not ours_s:
        return {}
    return {
        **spread("overhead", [ratio - 1 for ratio in ratios(ours_s, keras_s)]),
        "our_loop_step_s": statistics.median(ours_s),
        "keras_fit_step_s": statistics.median(keras_s),
    }


def ring(
    job: StepJob, *, ranks: int, repeats: int, progress: Progress, hosts: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Measure the step time of each way to reduce, in seconds, and that of as many independent copies.

    Args:
        job: what to time.
        ranks: the world size.
        repeats: measurements of each kind, in turn.
        progress: told what is being measured.
        hosts: ranks that fit on each host, by name; default: this host.
    """
    kinds: list[tuple[str, list[Process]]] = [("no reduction", _copies(job, ranks))]
    for name, options, environment in REDUCTIONS:
        ringed = dataclasses.replace(job, ring=options)
        kinds.append((name, [workers.ranks(ringed, "cingulum", ranks, environment, hosts)]))
    step_times: dict[str, list[float]] = {name: [] for name, _ in kinds}
    for repeat in range(repeats):
        for name, processes in kinds:
            progress(f"repeat {repeat + 1} of {repeats}: {name}")
            # One kind at a time: all of them at once would take the memory of eight.
            with Contestant(name, processes, stands_still=False) as contestant:
                contestant.warm_up()
                everyones = [seconds for launch in contestant.block() for seconds in launch]
            step_times[name].append(statistics.mean(map(statistics.median, everyones)))
    return {
        "step_s": {name: spread("median", times) for name, times in step_times.items()},
        "ranks": ranks,
        "repeats": repeats,
        "job": dataclasses.asdict(job),
        "machine": hardware.here(),
    }


def _copies(job: StepJob, number: int) -> list[Process]:
    return [workers.process(job, "cingulum", f"copy {copy}") for copy in range(number)]
