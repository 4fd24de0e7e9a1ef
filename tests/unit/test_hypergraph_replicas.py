"""Replicas of a network that a hypergraph divides: their size, and what sums over them cost."""

from __future__ import annotations

import random

import pytest
from planned_networks import small

from trainer.planning.hypergraph import reference, replicas
from trainer.planning.hypergraph.choices import cuts, whole
from trainer.planning.hypergraph.groups import groups, layouts
from trainer.planning.placement import costs, ways
from trainer.planning.placement.listing import task_lists
from trainer.planning.placement.units import place


def test_replicas_have_few_ranks_where_samples_allow_it():
    assert replicas.sizes(1024, 1024) == [1, 2, 4, 8, 16]
    assert replicas.sizes(1024, 64) == [16]
    assert replicas.sizes(1024, 16) == [64]
    assert replicas.sizes(1024, 8) == []
    assert replicas.sizes(6, 4) == [3, 6]


@pytest.mark.parametrize("ranks, count", [(1, 3), (2, 2), (3, 5), (2, 40)])
def test_sums_over_replicas_cost_what_their_messages_have(ranks, count):
    one, all_of_them = small(samples=2), small(samples=2 * count)
    some, draw = groups(one), random.Random(ranks)
    divided = [
        draw.choice([*cuts(group.shape, [1.0] * ranks), whole(group.shape, ranks - 1)]).layout
        for group in some
    ]
    own = place(one, layouts(some, divided))
    placement = place(all_of_them, ways.copies(layouts(some, divided), all_of_them, count, ranks))
    alone, summed = replicas.summed(own, ranks, 1), replicas.summed(own, ranks, count)
    sent, before = costs.sent(task_lists(placement), ranks * count), costs.sent(task_lists(own), ranks)
    assert tuple(summed.owned) == costs.owned(placement, ranks * count)
    assert sum(summed.received) == sum(summed.sent) / 2 > 0
    for rank, each in enumerate(sent):
        without = before[rank % ranks]
        assert each.bytes == without.bytes - alone.sent[rank % ranks] + summed.sent[rank]
        assert each.messages == without.messages - alone.messages[rank % ranks] + summed.messages[rank]


def test_slow_links_make_replicas_that_send_less():
    sizes = []
    for rate in (1e5, 1e12):
        profile = reference.profile(small(8), 4)
        link = profile.links[0][1].model_copy(update={"latency_s": 1e-12, "bytes_per_second": rate})
        links = tuple(tuple(None if s == t else link for t in range(4)) for s in range(4))
        profile = profile.model_copy(update={"links": links})
        sizes.append(replicas.best_size(small, 4, 4, profile=profile))
    assert sizes[0] != sizes[1]
