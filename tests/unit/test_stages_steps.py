"""Predicted steps of stages: their order, figures that follow by hand, and a player in plain Python."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stage_player import play

from trainer.planning.stages.instances import FAMILIES, drawn
from trainer.planning.stages.problem import SCHEDULES, StageProblem
from trainer.planning.stages.schedule import Chunk, order, stages
from trainer.planning.stages.steps import fitness, longest_s, memory, overflow, step_s

COUNTS = list(itertools.product(range(1, 9), range(1, 9), SCHEDULES))


def chain(partitions=2, devices=2, micro_batches=1, **changed):
    """A forward pass takes 1 s, a backward pass 2 s, a message of 4 bytes 0.5 s + 1 s, an update 0.25 s."""
    p, d = partitions, devices
    # What a device sends to itself is looked at nowhere.
    latency, rate = np.full((d, d), 0.5), np.full((d, d), 4.0)
    np.fill_diagonal(latency, np.nan)
    np.fill_diagonal(rate, 0.0)
    fields = {
        "forward_s": np.ones((p, d)), "backward_s": np.full((p, d), 2.0), "update_s": np.full((p, d), 0.25),
        "state_bytes": np.full(p, 8.0), "kept_bytes": np.ones(p), "moved_bytes": 4.0 * np.eye(p, k=1),
        "latency_s": latency, "bytes_per_second": rate,
        "memory_bytes": np.full(d, np.inf), "micro_batches": micro_batches, "schedule": "1f1b",
        "reduced_s": np.zeros((p, d)),
    }  # fmt: skip
    return StageProblem(**(fields | changed))


@st.composite
def problems(draw, partitions=7, devices=4):
    problem = drawn(
        draw(st.sampled_from(FAMILIES)),
        draw(st.integers(0, 10_000)),
        partitions=draw(st.integers(1, partitions)),
        devices=draw(st.integers(1, devices)),
        micro_batches=draw(st.integers(1, 6)),
        schedule=draw(st.sampled_from(SCHEDULES)),
    )
    return recomputing(problem) if draw(st.booleans()) else problem


def recomputing(problem):
    """The problem with what a forward pass takes to compute again, and half of it at the end of a stage."""
    return dataclasses.replace(problem, again_s=np.stack([problem.forward_s, problem.forward_s / 2]))


def test_a_stage_is_a_run_of_partitions_on_one_device():
    assert stages([1, 1, 0, 1]) == [(1, 0, 2), (0, 2, 3), (1, 3, 4)]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_an_order_has_every_chunk_once_after_what_it_reads(schedule):
    for count, micro_batches, _ in (one for one in COUNTS if one[2] == schedule):
        found = order(count, micro_batches, schedule)
        at = {chunk: place for place, chunk in enumerate(found)}
        assert len(at) == len(found) == 2 * count * micro_batches
        for chunk, place in at.items():
            back = chunk.passing == "backward"
            neighbour = chunk._replace(stage=chunk.stage + (1 if back else -1))
            needed = [neighbour, chunk._replace(micro=chunk.micro - 1)]
            if back:
                needed.append(chunk._replace(passing="forward"))
            assert all(at[one] < place for one in needed if 0 <= one.stage < count and one.micro >= 0)


def test_1f1b_has_no_more_micro_batches_in_flight_than_stages_to_come_and_gpipe_all():
    for count, micro_batches, schedule in COUNTS:
        flying, most = [0] * count, [0] * count
        for chunk in order(count, micro_batches, schedule):
            flying[chunk.stage] += 1 if chunk.passing == "forward" else -1
            most[chunk.stage] = max(most[chunk.stage], flying[chunk.stage])
        ahead = [count - stage for stage in range(count)] if schedule == "1f1b" else [micro_batches] * count
        assert most == [min(micro_batches, one) for one in ahead]


def test_1f1b_of_two_stages():
    f, b = "forward", "backward"
    expected = [(f, 0, 0), (f, 0, 1), (f, 1, 0), (b, 0, 1), (b, 0, 0), (f, 1, 1), (b, 1, 1), (b, 1, 0)]
    assert order(2, 2, "1f1b") == [Chunk(*one) for one in expected]


def test_a_step_on_one_device_takes_all_passes_and_updates_and_sends_nothing():
    assert step_s(chain(micro_batches=3), [[0, 0], [1, 1]]).tolist() == [3 * 6 + 0.5] * 2


def test_a_message_takes_latency_and_bytes_over_bandwidth_there_and_back():
    # Forward, message, forward, backward, message, backward, update.
    assert step_s(chain(), [[0, 1]])[0] == 1 + 1.5 + 1 + 2 + 1.5 + 2 + 0.25
    assert step_s(chain(reduced_s=np.full((2, 2), 3.0)), [[0, 1]])[0] == 9 + 0.25 + 3


def test_messages_of_a_link_wait_for_one_another():
    # Forward passes end at 1 and 2 s, their messages at 11 and 21. Backward passes on device 1 begin at 22,
    # their messages end at 34 and 44.
    problem = chain(micro_batches=2, bytes_per_second=np.full((2, 2), 4 / 9.5), schedule="gpipe")
    assert step_s(problem, [[0, 1]])[0] == 44 + 2 + 0.25


def test_a_tensor_that_two_partitions_of_a_device_read_is_sent_once_with_the_most_that_one_reads():
    moved = np.zeros((4, 4))
    moved[0, 1], moved[0, 3] = 4.0, 8.0
    problem = chain(4, moved_bytes=moved, latency_s=np.zeros((2, 2)))
    # 0 to 1 and 3 with 8 bytes, in 2 s; partition 2 reads nothing; the gradients leave when 1 has done.
    assert step_s(problem, [[0, 1, 0, 1]])[0] == 1 + 2 + 2 + 4 + 2 + 2 + 0.5


def test_limits_of_memory_count_state_and_micro_batches_in_flight():
    both = chain(2, micro_batches=4)
    assert memory(both, [[0, 1], [0, 0], [1, 0]]).tolist() == [[10, 9], [18, 0], [9, 10]]
    assert memory(dataclasses.replace(both, schedule="gpipe"), [[0, 1]]).tolist() == [[12, 12]]
    # Three stages, of which device 0 has two: 3 + 1 in flight at most, one after the other.
    assert memory(chain(3, micro_batches=4), [[0, 1, 0]]).tolist() == [[20, 10]]


def test_what_is_computed_again_takes_the_forward_pass_s_seconds_but_not_at_once():
    again = recomputing(chain(micro_batches=3))
    # Alone, or in the last stage under 1f1b, a backward pass follows its forward pass.
    assert step_s(again, [[0, 0]])[0] == 3 * 6 + 0.5
    assert step_s(recomputing(chain()), [[0, 1]]) == step_s(chain(), [[0, 1]])
    gpipe = dataclasses.replace(again, schedule="gpipe")
    assert step_s(gpipe, [[0, 0]])[0] == 3 * 7.5 + 0.5
    # Each of the second stage's three, and the last one of the first stage, has 0.5 s more.
    free = {"latency_s": np.zeros((2, 2)), "bytes_per_second": np.full((2, 2), 1e12), "schedule": "gpipe"}
    kept = chain(micro_batches=3, kept_bytes=np.full(2, 9.0), **free)
    assert step_s(recomputing(kept), [[0, 1]])[0] == pytest.approx(step_s(kept, [[0, 1]])[0] + 2)


def test_with_recompute_a_stage_keeps_what_it_reads_of_others_and_one_micro_batch_whole():
    again = recomputing(chain(2, micro_batches=4, schedule="gpipe", kept_bytes=np.full(2, 9.0)))
    # The first one reads nothing, the second one 4 bytes of each of the three that wait.
    assert memory(again, [[0, 1], [0, 0]]).tolist() == [[8 + 9, 8 + 9 + 3 * 4], [16 + 18, 0]]
    # What keeps less than it reads keeps it, and computes nothing again.
    little = dataclasses.replace(again, kept_bytes=np.full(2, 3.0))
    assert memory(little, [[0, 1]]).tolist() == [[8 + 3, 8 + 4 * 3]]
    kept = dataclasses.replace(little, again_s=None)
    # Backward passes of the first stage, which ends last, take 0.5 s longer.
    assert step_s(little, [[0, 1]])[0] == step_s(kept, [[0, 1]])[0] + 4 * 0.5


@settings(max_examples=60)
@given(problems(), st.data())
def test_steps_and_memory_of_many_are_what_a_plain_player_finds_of_each(problem, data):
    gene = st.integers(0, problem.devices - 1)
    genes = st.lists(gene, min_size=problem.partitions, max_size=problem.partitions)
    chromosomes = data.draw(st.lists(genes, min_size=1, max_size=6))
    steps, held = step_s(problem, chromosomes), memory(problem, chromosomes)
    for devices, step, each in zip(chromosomes, steps, held, strict=True):
        played = play(problem, devices)
        assert step == pytest.approx(played.step_s, rel=1e-12)
        assert each == pytest.approx(played.memory, rel=1e-12)
        assert step <= longest_s(problem) * (1 + 1e-12)


def test_whatever_fits_into_memory_is_fitter_than_what_does_not_and_a_bit_too_much_than_a_lot():
    problem = drawn("memory", 0, partitions=6, devices=3, micro_batches=4, schedule="1f1b")
    chromosomes = np.array(list(itertools.product(range(3), repeat=6)))
    over, fit = overflow(problem, chromosomes), fitness(problem, chromosomes)
    assert 0 < np.count_nonzero(over) < len(over)
    assert fit[over == 0].max() < fit[over > 0].min()
    assert np.array_equal(fit[over == 0], step_s(problem, chromosomes)[over == 0])
    boundless = dataclasses.replace(problem, memory_bytes=np.full(3, np.inf))
    assert np.array_equal(fitness(boundless, chromosomes), step_s(problem, chromosomes))
    rising = np.argsort(over)
    assert fit[rising[-1]] > fit[rising[np.count_nonzero(over == 0)]]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"forward_s": np.ones(3)}, "forward_s must be"),
        ({"update_s": np.ones((2, 3))}, r"update_s must have the shape \(2, 2\)"),
        ({"backward_s": np.full((2, 2), np.nan)}, "backward_s must be finite"),
        ({"kept_bytes": [-1.0, 0.0]}, "kept_bytes must be finite and not negative"),
        ({"moved_bytes": np.ones((2, 2))}, "to a later one"),
        ({"again_s": np.stack([np.zeros((2, 2)), np.ones((2, 2))])}, "no more at the end of a stage"),
        ({"latency_s": np.full((2, 2), -1.0)}, "latency_s"),
        ({"bytes_per_second": np.zeros((2, 2))}, "above 0"),
        ({"memory_bytes": [1.0, np.nan]}, "memory_bytes"),
        ({"micro_batches": 0}, "at least 1, not 0"),
        ({"schedule": "dualpipe"}, "one of gpipe, 1f1b, not 'dualpipe'"),
    ],
)
def test_a_problem_that_makes_no_sense_is_refused(changed, said):
    with pytest.raises(ValueError, match=said):
        chain(**changed)


@pytest.mark.parametrize("chromosomes", [[[0]], [[0, 2]], [[0, -1]], [[0.0, 1.0]], [0, 1]])
def test_an_assignment_that_is_none_is_refused(chromosomes):
    with pytest.raises(ValueError, match="must be"):
        step_s(chain(), chromosomes)


def test_a_schedule_needs_stages_and_micro_batches():
    for count, micro_batches, schedule in ((0, 1, "gpipe"), (1, 0, "gpipe"), (1, 1, "else")):
        with pytest.raises(ValueError, match="no order of"):
            order(count, micro_batches, schedule)
