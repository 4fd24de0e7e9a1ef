"""Planners of stages: GABRA, and what it is compared with, on problems small enough to try everything."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stage_player import play
from test_stages_steps import chain, recomputing

from trainer.planning.stages import planners
from trainer.planning.stages.cutting import partitions
from trainer.planning.stages.dynamic import dynamic
from trainer.planning.stages.exhaustive import exhaustive
from trainer.planning.stages.gabra import gabra, neighbours
from trainer.planning.stages.greedy import longest_first
from trainer.planning.stages.instances import FAMILIES, drawn
from trainer.planning.stages.milp import milp
from trainer.planning.stages.planners import bound_s, path_s
from trainer.planning.stages.problem import SCHEDULES
from trainer.planning.stages.schedule import stages
from trainer.planning.stages.steps import fitness, memory, overflow, step_s

# Each family with both schedules; the same ones every time.
# Times as many bytes that move: then links are what takes longest.
SLOWER = st.sampled_from([1, 30])
CHAINS = ("equal", "unequal", "slow-links", "memory")
SMALL = [
    drawn(family, 1, partitions=7, devices=3, micro_batches=3, schedule=SCHEDULES[number % 2])
    for number, family in enumerate(FAMILIES)
]
# Whose optimum is little longer than what its busiest device has to do.
BUSY = drawn("equal", 1, partitions=7, devices=2, micro_batches=16, schedule="1f1b")
LARGER = [drawn(family, 2, partitions=10, devices=5, micro_batches=2, schedule="1f1b") for family in FAMILIES]


def everything(problem):
    return np.array(list(itertools.product(range(problem.devices), repeat=problem.partitions)))


def small(family, seed, schedule, **others):
    sizes = {"partitions": 5, "devices": 3, "micro_batches": 3} | others
    return drawn(family, seed, schedule=schedule, **sizes)


@pytest.mark.parametrize("problem", [*SMALL[::2], BUSY])
def test_brute_force_finds_what_playing_every_assignment_finds(problem):
    found, all_ = exhaustive(problem), everything(problem)
    assert found.tried == len(all_)
    assert fitness(problem, [found.devices])[0] == fitness(problem, all_).min()


def test_brute_force_plays_no_step_whose_busiest_device_has_more_to_do_than_the_best_step():
    assert exhaustive(SMALL[0]).played < 3**7


def test_brute_force_refuses_what_would_take_days():
    with pytest.raises(ValueError, match="9765625 assignments; at most 2000000"):
        exhaustive(LARGER[0])


@pytest.mark.parametrize("number", range(len(SMALL)))
def test_gabra_is_within_1_percent_of_brute_force_and_no_assignment_beats_the_bound(number):
    rows = {row.planner: row for row in planners.compare(SMALL[number])}
    assert list(rows) == list(planners.PLANNERS)
    best = rows["exhaustive"]
    assert best.fits and rows["gabra"].fits and rows["gabra"].step_s <= 1.01 * best.step_s
    assert 0 < best.bound_s <= best.step_s
    for row in rows.values():
        assert row.step_s == pytest.approx(play(SMALL[number], row.devices).step_s)
        assert row.gap == row.step_s / row.bound_s - 1 and (row.gap >= best.gap or not row.fits)
        assert row.memory_bytes == tuple(memory(SMALL[number], [row.devices])[0])
        assert row.fits == (overflow(SMALL[number], [row.devices])[0] == 0)


@pytest.mark.parametrize("number", range(1, len(LARGER), 3))
def test_gabra_is_never_worse_than_lpt_and_with_our_start_than_the_dynamic_program(number):
    problem = LARGER[number]
    published = gabra(problem, seed=0, generations=40).devices
    planned = planners.plan_gabra(problem, 0)
    cost = fitness(problem, [published, planned, longest_first(problem), dynamic(problem)])
    assert cost[0] < cost[2] and cost[1] <= min(cost[2], cost[3])


def test_gabra_is_the_same_by_seed_and_its_best_never_gets_worse():
    problem = LARGER[-1]
    for options in ({}, {"climbing": True}, {"distinct": True}):
        one, same, other = (
            gabra(problem, seed=s, population=20, generations=15, **options) for s in (0, 0, 1)
        )
        assert one == same != other
        assert len(one.history) == 16 and list(one.history) == sorted(one.history, reverse=True)
        assert one.step_s == step_s(problem, [one.devices])[0]


def test_gabra_finds_a_better_step_than_as_many_random_assignments():
    problem = LARGER[1]
    found = gabra(problem, seed=0, generations=20)
    random = np.random.default_rng(0).integers(0, problem.devices, (found.evaluations, problem.partitions))
    assert found.history[-1] < 0.95 * fitness(problem, random).min()


def test_a_plan_of_gabra_is_the_better_one_of_a_search_from_other_plans_and_a_random_one(
    monkeypatch,
):
    calls = []

    def search(problem, **options):
        calls.append((options["seed"], options.get("started", [])))
        return gabra(problem, seed=len(calls), population=3, generations=0)

    monkeypatch.setattr(planners, "gabra", search)
    found = planners.plan_gabra(SMALL[1], 3)
    assert calls == [(3, [longest_first(SMALL[1]), dynamic(SMALL[1])]), (3, [])]
    both = [gabra(SMALL[1], seed=seed, population=3, generations=0) for seed in (1, 2)]
    assert (
        found
        == min(both, key=lambda one: one.step_s).devices
        != max(both, key=lambda one: one.step_s).devices
    )


def test_gabra_begins_with_what_it_is_given_and_plays_equal_individuals_once():
    problem = SMALL[0]
    best = exhaustive(problem).devices
    begun = gabra(problem, seed=0, population=10, generations=0, started=[best])
    assert begun.devices == best and begun.evaluations <= 10
    alike = gabra(problem, seed=0, population=10, generations=0, started=[best] * 10)
    assert alike.evaluations == 1


def test_climbing_ends_where_no_neighbour_is_better():
    problem = SMALL[4]
    found = gabra(problem, seed=0, population=4, generations=0, climbing=True)
    around = neighbours(np.array(found.devices), problem.devices)
    assert fitness(problem, around).min() >= found.history[-1]


def test_neighbours_have_one_gene_changed_or_two_devices_exchanged():
    found = neighbours(np.array([0, 0, 1]), 3).tolist()
    changed = [[1, 0, 1], [2, 0, 1], [0, 1, 1], [0, 2, 1], [0, 0, 0], [0, 0, 2]]
    assert found == [*changed, [1, 1, 0], [2, 2, 1], [0, 0, 2]]


@pytest.mark.parametrize("options", [{"population": 1}, {"elite": 0}, {"tournament": 0}, {"generations": -1}])
def test_gabra_refuses_sizes_that_do_not_fit_together(options):
    with pytest.raises(ValueError, match="no population of"):
        gabra(SMALL[0], seed=0, **options)


def test_lpt_puts_the_longest_first_where_it_is_done_soonest_and_where_there_is_room():
    problem = drawn("equal", 0, partitions=4, devices=2, micro_batches=1, schedule="gpipe")
    work = np.array([2.0, 5.0, 3.0, 3.0])
    same = {
        "forward_s": np.tile(work[:, None], 2), "backward_s": np.zeros((4, 2)), "update_s": np.zeros((4, 2)),
        "state_bytes": np.ones(4), "kept_bytes": np.zeros(4),
    }  # fmt: skip
    problem = dataclasses.replace(problem, **same)
    assert longest_first(problem) == (0, 0, 1, 1)
    assert longest_first(dataclasses.replace(problem, memory_bytes=[1.0, 3.0])) == (1, 0, 1, 1)


@settings(max_examples=25)
@given(st.sampled_from(CHAINS), st.integers(0, 999), st.sampled_from(SCHEDULES), SLOWER, st.booleans())
def test_the_dynamic_program_has_the_least_bottleneck_of_chains_of_as_many_stages(
    family, seed, schedule, slower, recompute
):
    problem = small(family, seed, schedule, micro_batches=8)
    problem = dataclasses.replace(problem, moved_bytes=slower * problem.moved_bytes)
    problem = recomputing(problem) if recompute else problem
    all_ = everything(problem)
    chains = [one for one in all_[overflow(problem, all_) == 0] if is_chain(one)]
    found = dynamic(problem)
    assert is_chain(found)
    if chains:
        rivals = [bottleneck(problem, one) for one in chains if len(stages(one)) == len(stages(found))]
        assert bottleneck(problem, found) == pytest.approx(min(rivals))
        assert not overflow(problem, [found])[0]


def test_the_dynamic_program_cuts_where_little_moves():
    even = drawn("equal", 0, partitions=4, devices=2, micro_batches=8, schedule="1f1b")
    seconds, moved = np.ones((4, 2)), np.diag([0.1, 40.0, 0.1], 1)
    even = dataclasses.replace(even, forward_s=seconds, backward_s=2 * seconds, update_s=0 * seconds)
    assert dynamic(even) in ((0, 0, 1, 1), (1, 1, 0, 0))
    slow = dataclasses.replace(even, moved_bytes=moved, bytes_per_second=np.ones((2, 2)))
    assert len(stages(dynamic(slow))) == 2 and dynamic(slow)[1] == dynamic(slow)[2]


def is_chain(devices):
    """Whether no device has two stages."""
    return len(stages(devices)) == len(set(devices))


def bottleneck(problem, devices):
    """Of a chain: the longest stage or message per micro-batch, by hand."""
    runs = stages(devices)
    passes = problem.forward_s + problem.backward_s + problem.final_s / problem.micro_batches
    took = [passes[one.start : one.stop, one.device].sum() for one in runs]
    if problem.again_s is not None:
        for i, (_, start, stop) in enumerate(runs):
            inside, last = problem.again_s[:, start:stop, runs[i].device]
            read = sum(problem.moved_bytes[p, start:stop].max() for p in range(start))
            is_last = problem.schedule == "1f1b" and stop == problem.partitions
            if read < problem.kept_bytes[start:stop].sum() and not is_last:
                took[i] += inside[:-1].sum() + last[-1]
    for one, other in itertools.pairwise(runs):
        moved = problem.moved_bytes[other.start - 1, other.start]
        for pair in ((one.device, other.device), (other.device, one.device)):
            took.append(problem.latency_s[pair] + moved / problem.bytes_per_second[pair])
    return max(took)


@settings(max_examples=25)
@given(
    family=st.sampled_from(FAMILIES),
    seed=st.integers(0, 999),
    schedule=st.sampled_from(SCHEDULES),
    micro_batches=st.integers(1, 4),
    partitions=st.integers(1, 5),
    devices=st.integers(1, 3),
    slower=SLOWER,
    recompute=st.booleans(),
)
def test_no_assignment_that_fits_has_a_shorter_step_than_the_bound(slower, recompute, **drawn_as):
    problem = small(**drawn_as)
    problem = dataclasses.replace(problem, moved_bytes=slower * problem.moved_bytes)
    problem = recomputing(problem) if recompute else problem
    all_ = everything(problem)
    steps, fit = step_s(problem, all_), overflow(problem, all_) == 0
    bound = bound_s(problem, milp(problem))
    assert path_s(problem) <= steps.min() * (1 + 1e-12)
    assert bound <= steps[fit].min(initial=np.inf) * (1 + 1e-12)


def test_the_bound_of_one_device_is_its_step_and_of_one_micro_batch_the_critical_path():
    alone = small("skips", 0, "1f1b", devices=1)
    assert bound_s(alone, milp(alone)) == pytest.approx(step_s(alone, [[0] * 5])[0], rel=1e-4)
    one = small("equal", 0, "1f1b", micro_batches=1)
    critical = 3 * one.forward_s[:, 0].sum() + one.final_s[0, 0]
    assert path_s(one) >= critical - 1e-9


def test_what_does_not_fit_into_memory_may_fit_where_stages_compute_again():
    kept = chain(micro_batches=4, schedule="gpipe", kept_bytes=np.full(2, 9.0), memory_bytes=np.full(2, 30.0))
    with pytest.raises(planners.NoneFits):
        planners.plan(kept, "gabra")
    found = planners.plan(recomputing(kept), "gabra")
    assert found.fits and sorted(found.devices) == [0, 1]
    # The four backward passes of the first stage, and the one that they wait for.
    assert found.step_s == step_s(kept, [[0, 1]])[0] + 5 * 0.5


def test_no_plan_where_nothing_fits_into_memory():
    problem = small("equal", 0, "1f1b")
    short = dataclasses.replace(problem, memory_bytes=np.full(3, problem.state_bytes.sum() / 3.5))
    with pytest.raises(ValueError, match="no assignment fits into the memory"):
        planners.plan(short, "gabra")


def test_an_unknown_planner_is_refused():
    with pytest.raises(ValueError, match="one of gabra, dynamic, milp, greedy, exhaustive, not 'magic'"):
        planners.plan(SMALL[0], "magic")


@given(st.lists(st.integers(0, 20), min_size=1, max_size=8), st.integers(1, 9))
def test_a_cut_has_the_least_sum_of_squares_of_all_cuts(seconds, n):
    found = partitions(seconds, n)
    n = min(n, len(seconds))
    assert len(found) == n and found[0][0] == 0 and found[-1][1] == len(seconds)
    assert all(start < stop for start, stop in found)
    assert all(one[1] == other[0] for one, other in itertools.pairwise(found))
    cuts = ([0, *inner, len(seconds)] for inner in itertools.combinations(range(1, len(seconds)), n - 1))
    least = min(sum(sum(seconds[a:b]) ** 2 for a, b in itertools.pairwise(cut)) for cut in cuts)
    assert sum(sum(seconds[start:stop]) ** 2 for start, stop in found) == least


@pytest.mark.parametrize(("seconds", "n"), [([], 1), ([1.0], 0), ([-1.0], 1), ([np.nan], 1)])
def test_what_cannot_be_cut_is_refused(seconds, n):
    with pytest.raises(ValueError, match="cannot be cut"):
        partitions(seconds, n)
