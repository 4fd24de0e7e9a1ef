"""What follows from intervals: the parts of a step, what moved, the trace, the verdict; all made by hand."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import telemetry_lines
from hypothesis import given
from hypothesis import strategies as st
from wording import fails_with

from trainer.errors import RunError
from trainer.telemetry import parts, pipeline, records, timeline, trace
from trainer.telemetry.facts import RunFacts
from trainer.telemetry.intervals import Interval, StepIntervals, Transfer, spent, transfers
from trainer.telemetry.records import RunTelemetry
from trainer.telemetry.timeline import Call, MarkLayout
from trainer.telemetry.verdict import verdict

KINDS = ("forward", "stage 2", "update", "input", "wait", "statistics", "reduce", "send", "receive")
# What a rank of data parallelism records: 8 s, of which the first one is waiting for a batch.
STEP = (
    Interval("input", 9.0, 10.0),
    Interval("forward", 10.0, 12.0),
    Interval("statistics", 10.5, 11.0),
    Interval("backward", 12.0, 15.0),
    Interval("reduce", 13.0, 14.0, None, 600),
    Interval("reduce", 14.5, 16.0, None, 200),
    Interval("wait", 15.0, 16.0),
    Interval("update", 16.0, 16.25),
)


def step(*intervals: Interval, seconds: float = 8.0, number: int = 7, first: bool = False) -> StepIntervals:
    return StepIntervals(number, 9.0, seconds, intervals, first)


def test_overlapped_and_exposed_communication_are_told_apart():
    (found,) = parts.steps([step(*STEP)])
    assert (found.forward, found.backward) == (1.5, 3.0)
    assert found.exposed == 0.5 + 1.0  # batch norm, and the last bucket after the backward pass
    assert found.overlapped == 1.0 + 0.5
    assert (found.update, found.input_wait, found.other) == (0.25, 1.0, 0.75)
    assert found.transfers == (Transfer("reduce", None, 800, 2.5),)


def test_what_moves_while_the_rank_waits_for_batch_norm_is_not_hidden():
    found = spent([Interval("backward", 0, 4), Interval("reduce", 1, 3), Interval("statistics", 2, 3)])
    assert found.seconds == {"backward": 3, "statistics": 1, "reduce": 0} and found.overlapped == 1


def test_a_stage_of_a_pipeline_has_bubbles_and_transfers():
    """Another division of the work: its own kinds, peers with numbers, no backward pass, no update."""
    recorded = [
        Interval("wait", 0, 2, peer=0),
        Interval("receive", 1, 2, peer=0, bytes=64),
        Interval("stage 2", 2, 5),
        Interval("send", 5, 6, peer=2, bytes=32),  # nothing is computed meanwhile
        Interval("receive", 3, 5, peer=0, bytes=64),
        Interval("stage 2", 6, 8),
    ]
    assert spent(recorded).seconds == {"wait": 2, "stage 2": 5, "send": 1, "receive": 0}
    assert spent(recorded).overlapped == 2
    assert set(transfers(recorded)) == {
        Transfer("wait", 0, 0, 2), Transfer("receive", 0, 128, 3), Transfer("send", 2, 32, 1)
    }  # fmt: skip
    (found,) = parts.steps([step(*recorded)])
    assert (found.exposed, found.overlapped, found.other) == (3, 2, 5)


@given(
    st.lists(
        st.builds(
            lambda kind, start, length: Interval(kind, start / 8, (start + length) / 8),
            st.sampled_from(KINDS), st.integers(0, 40), st.integers(0, 40),
        )
    )
)  # fmt: skip
def test_each_moment_counts_once(intervals):
    covered = {tick for one in intervals for tick in range(int(one.start * 8), int(one.end * 8))}
    assert sum(spent(intervals).seconds.values()) == len(covered) / 8


def test_clocks_that_differ_a_little_still_add_up():
    (found,) = parts.steps([step(*STEP, seconds=7.2)])
    assert found.other == 0.0
    assert sum(getattr(found, part) for part in records.PARTS) == pytest.approx(found.seconds)


LAYOUT = MarkLayout(forward=(True, False), backward=(), buckets=(600, 200))
# Start, forward and backward end; batch norm leaves and returns; two buckets.
MARKS = (10.0, 12.0, 15.0, 10.5, 11.0, 13.0, 14.0, 14.5, 16.0)


def of_call(*stamps: float, layout: MarkLayout = LAYOUT, ended: float = 16.25) -> set[Interval]:
    return set(timeline.of_call(Call(layout, np.array(stamps), ended)))


def test_the_timestamps_of_a_compiled_step_become_intervals():
    assert of_call(*MARKS) == set(STEP[1:])


@pytest.mark.parametrize("older", [(3.0, 4.0, 4.5, 6.0), ()])
def test_a_bucket_of_an_earlier_call_does_not_count(older):
    found = of_call(*MARKS[:5], *older)
    assert {one.kind for one in found} == {"forward", "backward", "statistics", "update"}
    assert Interval("update", 15.0, 16.25) in found


def test_waiting_counts_only_while_nothing_leaves_or_returns():
    # One branch leaves at 1, the other computes until 3 and leaves; the first returns at 4, the second at 9.
    layout = MarkLayout(forward=(True, False, True, False))
    found = of_call(0.0, 10.0, 12.0, 1.0, 4.0, 3.0, 9.0, layout=layout)
    assert [one for one in found if one.kind == "statistics"] == [Interval("statistics", 3.0, 4.0)]


def test_a_rank_that_reads_no_input_begins_with_its_first_message():
    """Nothing waits for its timestamp of the start, which TensorFlow takes at the end."""
    layout, stamps = MarkLayout(chunks=(("forward", 0), ("backward", 0))), (9.0, 8.0, 8.5, 4.0, 7.0)
    found = set(timeline.of_call(Call(layout, np.array(stamps), 9.5, 3.0)))
    assert {Interval("forward", 3.0, 4.0, micro=0), Interval("backward", 4.0, 7.0, micro=0)} <= found
    whole = set(timeline.of_call(Call(MarkLayout(), np.array((9.0, 8.0, 8.5)), 9.5, 3.0)))
    assert Interval("forward", 3.0, 8.0) in whole


def test_a_pass_whose_timestamp_came_late_ends_before_the_next_one():
    layout = MarkLayout(chunks=(("forward", 0), ("backward", 0), ("forward", 1), ("backward", 1)))
    ends = (3.0, 2.0, 4.0, 6.5)  # and the whole backward pass at 6
    found = timeline.of_call(Call(layout, np.array((1.0, 3.5, 6.0, *ends)), 7.0))
    passes = [(one.kind, one.start, one.end) for one in found if one.micro is not None]
    assert passes == [
        ("forward", 1.0, 2.0), ("backward", 2.0, 2.0), ("forward", 2.0, 4.0), ("backward", 4.0, 6.0)
    ]  # fmt: skip


def test_a_rank_without_any_stage_has_a_row_of_its_own():
    passes = (Interval("forward", 9.0, 10.0, micro=0), Interval("wait", 9.5, 9.75, peer=1))
    ranks = [pipeline.outline(one) for one in (step(*passes), step(*STEP))]
    assert ranks[1]["intervals"] == ()
    tree = pipeline.tree([pipeline.told(one) for one in ranks])
    assert tree is not None and (tree["step"], tree["seconds"]) == (7, 8.0)
    assert tree["ranks"] == [[["forward", 0, 0.0, 0.5], ["forward", 0, 0.75, 1.0]], []]
    assert pipeline.tree([pipeline.told(ranks[1])] * 2) is None, "no stages pass on micro-batches"
    other = pipeline.told({**ranks[1], "step": 8})
    assert pipeline.tree([pipeline.told(ranks[0]), other]) is pipeline.tree([None, other]) is None


def test_events_of_a_thread_of_the_trace_lie_inside_of_each_other_or_apart(tmp_path):
    """Chunks of a pipeline, whose waiting ends in another one; buckets that overlap; a wall clock."""
    began, tick = 1795631351.2411795, 0.0012345678
    moments = [began + n * tick for n in range(40)]
    chunks = [
        Interval("forward", start, end, micro=n) for n, (start, end) in enumerate(itertools.pairwise(moments))
    ]
    waits = [Interval("wait", one.start + tick / 2, one.end + tick / 4, peer=1) for one in chunks]
    both = [Interval("wait", began, began + 3 * tick, peer=peer) for peer in (0, 2)]
    buckets = [Interval("reduce", start, start + 1.5 * tick) for start in moments]
    backwards = Interval("backward", began + 2.0, began + 1.0)
    recorded = StepIntervals(3, began + 1e-6, 39 * tick - 2e-6, (*chunks, *waits, *both, *buckets, backwards))
    telemetry_lines.append(trace.rank_file(tmp_path, 0), trace.lines([recorded]))
    told = json.loads(trace.join(tmp_path, ("a",)).read_text())["traceEvents"]
    threads: dict[int, list[tuple[float, float]]] = {}
    for event in told:
        if event["ph"] == "X":
            start = round(10 * event["ts"])
            threads.setdefault(event["tid"], []).append((start, start + round(10 * event["dur"])))
    assert sum(map(len, threads.values())) == 1 + len(recorded.intervals) - 1
    assert len(threads[0]) == 1 + len(chunks), "what the rank did is on one thread"
    for spans in threads.values():
        for (begins, ends), (next_begins, next_ends) in itertools.combinations(sorted(spans), 2):
            assert begins <= ends and (next_begins >= ends or next_ends <= ends or begins == next_begins)
    names = {e["tid"]: e["args"]["name"] for e in told if e["name"] == "thread_name"}
    assert set(names) >= set(threads) and {"transfers", "transfers 2", "messages 2"} <= set(names.values())


def test_the_trace_tells_peers_and_bytes(tmp_path):
    sent = Interval("send", 12.0, 13.0, peer=3, bytes=64)
    telemetry_lines.append(trace.rank_file(tmp_path, 0), trace.lines([step(*STEP, sent)]))
    told = json.loads(trace.join(tmp_path, ("a",)).read_text())["traceEvents"]
    shown = {e["name"]: (e["tid"], e["ts"], e["dur"], e["args"]) for e in told if e["ph"] == "X"}
    assert shown["step 7"] == (0, 0.0, 8e6, {"step": 7})
    assert shown["reduce 1"] == (1, 5.5e6, 1.5e6, {"step": 7, "bytes": 200})
    assert shown["send, peer 3"] == (1, 3e6, 1e6, {"step": 7, "bytes": 64})
    assert shown["statistics"][0] == 2 and len(shown) == 10


def test_a_damaged_trace_is_named(tmp_path):
    telemetry_lines.append(trace.rank_file(tmp_path, 0), [{"step": 1, "version": 2}])
    with fails_with(RunError):
        trace.join(tmp_path, ("a",))


def run_of(*intervals: Interval, ranks: int = 2) -> RunTelemetry:
    made = [step(*intervals, number=number, first=number == 1) for number in range(1, 9)]
    return RunTelemetry({rank: tuple(parts.steps(made)) for rank in range(ranks)})


def test_the_verdict_follows_from_intervals():
    facts = RunFacts(hosts=("n1", "n2"), bytes_sent=8 * 2**20)
    found = verdict(run_of(Interval("forward", 9, 12), Interval("wait", 12, 17)), facts)
    assert found is not None and found.bound == "network"
    assert found.gains["network"] == pytest.approx(5 / 8)
    found = verdict(run_of(Interval("input", 9, 14), Interval("forward", 14, 17), ranks=1), facts)
    assert found is not None and found.bound == "input" and "rank 0 @ n1" in found.evidence[1]
