"""The cost model of communication against the formulas of SYSTEMS.md, and against frames counted by hand."""

from __future__ import annotations

import pytest

from trainer.errors import ConfigError
from trainer.planning import communication as costs

M, B = 8e6, 1e6


def bare(rounds: costs.Rounds, processes: int) -> costs.Prediction:
    return costs.predict(rounds, range(processes), bytes_per_second=B, frames=costs.BARE)


@pytest.mark.parametrize("n", [2, 3, 4, 8])
@pytest.mark.parametrize("algorithm", ["ring", "segmented-ring"])
def test_a_ring_sends_two_n_minus_1_over_n_of_the_gradients(n, algorithm):
    found = bare(costs.reduction(algorithm, M, n), n)
    expected = 2 * (n - 1) / n * M
    for host in found.interfaces:
        assert (host.sent, host.received) == pytest.approx((expected, expected))
    assert found.seconds == pytest.approx(expected / B)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_one_server_takes_n_squared_over_2_n_minus_1_of_the_ring(n):
    server = bare(costs.servers([M], n), n + 1)
    assert server.interfaces[n] == costs.InterfaceBytes(n * M, n * M)
    assert server.interfaces[:n] == (costs.InterfaceBytes(M, M),) * n
    assert server.seconds == pytest.approx(n * M / B)
    ring = bare(costs.reduction("ring", M, n), n)
    assert server.seconds / ring.seconds == pytest.approx(n**2 / (2 * (n - 1)))


def test_as_many_colocated_servers_as_workers_cost_what_the_ring_costs():
    ring = bare(costs.reduction("ring", M, 4), 4)
    found = bare(costs.servers((M / 4,) * 4, 4, colocated=True), 4)
    assert found.seconds == pytest.approx(ring.seconds)
    for one, other in zip(found.interfaces, ring.interfaces, strict=True):
        assert (one.sent, one.received) == pytest.approx((other.sent, other.received))


def test_a_colocated_server_is_spared_its_own_worker():
    found = bare(costs.servers([M], 4, colocated=True), 4)
    assert found.interfaces == (costs.InterfaceBytes(3 * M, 3 * M), *(costs.InterfaceBytes(M, M),) * 3)
    assert bare(costs.servers([M], 1, colocated=True), 1).seconds == 0


def test_separate_servers_are_as_fast_as_their_largest_share_and_no_faster_than_a_worker():
    assert bare(costs.servers([0.75 * M, 0.25 * M], 4), 6).seconds == pytest.approx(4 * 0.75 * M / B)
    assert bare(costs.servers((M / 8,) * 8, 4), 12).seconds == pytest.approx(M / B)


@pytest.mark.parametrize(("piece", "longer"), [(0.01 * M, 1.01), (M / 4, 1.25), (M, 2), (9 * M, 2)])
def test_the_first_piece_in_and_the_last_out_have_the_link_for_themselves(piece, longer):
    one, other = costs.servers([M], 4), costs.servers([M], 4, piece=piece)
    assert bare(other, 5).seconds == pytest.approx(longer * bare(one, 5).seconds)
    for host, same in zip(bare(other, 5).interfaces, bare(one, 5).interfaces, strict=True):
        assert host == pytest.approx(same)


@pytest.mark.parametrize(
    ("algorithm", "sent_by_0", "sent_by_all", "seconds"),
    [
        ("recursive-doubling", 3, 24, 3),
        ("tree", 3, 14, 6),
        ("reduce-broadcast", 7, 14, 14),
        ("gather", 7, 14, 14),
    ],
)
def test_the_other_reductions_of_eight_ranks(algorithm, sent_by_0, sent_by_all, seconds):
    found = bare(costs.reduction(algorithm, M, 8), 8)
    assert found.interfaces[0].sent == sent_by_0 * M
    assert sum(host.sent for host in found.interfaces) == sent_by_all * M
    assert found.seconds == pytest.approx(seconds * M / B)


@pytest.mark.parametrize("n", range(1, 10))
@pytest.mark.parametrize("algorithm", costs.ALGORITHMS)
def test_every_rank_hears_of_every_other(algorithm, n):
    """Follows who knows whose gradients; the ring's parts count as known once they have gone round twice."""
    knows = [{rank} for rank in range(n)]
    for flows in costs.reduction(algorithm, M, n):
        before = [set(known) for known in knows]
        for flow in flows:
            knows[flow.target] |= before[flow.source]
    assert all(known == set(range(n)) for known in knows)


@pytest.mark.parametrize(
    ("ranks", "sent"),
    [(1, [0] * 6), (2, [1] * 6), (4, [1.5, 1.5, 2, 2, 3, 3]), (6, [10 / 6, 10 / 6, 3, 3, 5, 5])],
)
def test_the_busiest_rank_of_each_route(ranks, sent):
    def busiest(algorithm):
        return max(one.sent for one in costs.payload(costs.reduction(algorithm, 1.0, ranks), ranks))

    assert [busiest(name) for name in costs.ALGORITHMS] == pytest.approx(sent)


def test_ranks_of_one_host_share_its_link():
    found = costs.predict(costs.reduction("ring", M, 4), (0, 0, 1, 1), bytes_per_second=B, frames=costs.BARE)
    assert found.interfaces == (costs.InterfaceBytes(1.5 * M, 1.5 * M),) * 2
    one_host = costs.predict(costs.reduction("ring", M, 4), (0,) * 4, bytes_per_second=B)
    assert one_host == costs.Prediction((costs.InterfaceBytes(),), 0.0)


def test_frames_have_headers_and_every_second_one_an_answer():
    # As counted on a testbed's link: 12.5 MB of payload were 13.07 MB in 8641 frames, with 4326 answers.
    found = costs.ETHERNET.on_wire(costs.InterfaceBytes(sent=12.5e6))
    assert found.sent == pytest.approx(12.5e6 / 1448 * 1514)
    assert found.received == pytest.approx(12.5e6 / 1448 / 2 * 66)
    both = costs.ETHERNET.on_wire(costs.InterfaceBytes(12.5e6, 12.5e6))
    assert both.sent == both.received == pytest.approx(found.sent)  # data carries the answers


@pytest.mark.parametrize(("n", "answers"), [(2, 0), (4, 66 / 2)])
def test_in_a_ring_of_more_than_two_no_data_goes_back_to_who_sent(n, answers):
    found = costs.predict(costs.reduction("ring", M, n), range(n), bytes_per_second=B)
    assert found.interfaces[0].sent == pytest.approx(2 * (n - 1) / n * M / 1448 * (1514 + answers))
    assert found.seconds == pytest.approx(found.interfaces[0].sent / B)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_connections_that_share_a_servers_link_carry_answers_for_their_share_of_the_time(n):
    found = costs.predict(costs.servers((M,), n), range(n + 1), bytes_per_second=B)
    alone = (1 - 1 / n) * 66 / 2  # of every second answer, what no data takes along
    assert found.interfaces[0] == pytest.approx((M / 1448 * (1514 + alone),) * 2)
    assert found.interfaces[n] == pytest.approx((n * M / 1448 * (1514 + alone),) * 2)


def test_latency_is_paid_once_a_round():
    rounds = costs.reduction("ring", M, 8)
    slow, quick = (costs.predict(rounds, range(8), bytes_per_second=B, latency_s=s) for s in (0.01, 0.0))
    assert slow.seconds - quick.seconds == pytest.approx(14 * 0.01)


@pytest.mark.parametrize(("n", "k"), [(3, 3), (4, 3), (8, 5), (16, 9)])
def test_the_crossover_is_the_first_number_of_servers_that_beats_the_ring(n, k):
    ring = bare(costs.reduction("ring", M, n), n).seconds
    with_servers = [bare(costs.servers((M / c,) * c, n), n + c).seconds for c in (k - 1, k)]
    assert with_servers[1] < ring <= with_servers[0]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: costs.reduction("spiral", M, 4),  # type: ignore[arg-type]
        lambda: costs.reduction("ring", M, 0),
        lambda: costs.servers([], 4),
        lambda: costs.servers([M / 3] * 3, 2, colocated=True),
        lambda: costs.predict((), (0,), bytes_per_second=0),
    ],
)
def test_what_cannot_be_is_a_configuration_error(wrong):
    with pytest.raises(ConfigError):
        wrong()
