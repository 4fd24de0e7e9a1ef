"""A run's prediction: links from timed all-reduces, seconds of a step, and both beside what was measured."""

from __future__ import annotations

import dataclasses
import json

import pytest

from trainer.config import RingConfig
from trainer.errors import RunError
from trainer.planning import links
from trainer.planning.communication import ALGORITHMS, Flow, reduction
from trainer.planning.exchange import Exchange
from trainer.planning.links import HostLink, Timed
from trainer.ranks import world as worlds
from trainer.strategies import data_plan
from trainer.strategies.servers import layout
from trainer.telemetry import link_probe, prediction
from trainer.telemetry.intervals import Transfer
from trainer.telemetry.prediction import RunPrediction
from trainer.telemetry.records import HostEpoch, RunTelemetry, Step

LINK = HostLink(0.001, 1e6)


@pytest.mark.parametrize("hosts", [("a", "a"), ("a", "b"), ("a", "a", "b", "b"), ("a", "b", "c")])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_link_is_found_again_from_the_all_reduces_that_it_would_time(algorithm, hosts):
    timed = [
        Timed(size, links.seconds(reduction(algorithm, size, len(hosts)), hosts, LINK))
        for size in (4096, 262_144, 4_194_304)
    ]
    assert links.fit(timed, algorithm, hosts) == pytest.approx(LINK)


def test_a_large_all_reduce_that_was_no_slower_gives_a_rate_alone():
    assert links.fit([Timed(4096, 0.5), Timed(2**20, 0.5)], "ring", "ab") == HostLink(0.0, 2**20 / 0.5)


def test_sizes_that_would_take_too_long_are_left_out():
    slow = [Timed(4096, 0.01), Timed(65_536, 0.02)]
    assert link_probe.expected(slow, 2**20) == pytest.approx(0.02 + 0.01 / 61_440 * (2**20 - 65_536))
    assert link_probe.expected(slow[:1], 2**20) == 0
    assert link_probe.expected([Timed(4096, 0.02), Timed(65_536, 0.01)], 2**20) == 0.01


class Alone(worlds.World):
    """One rank that calls itself two, so that what is timed is its own adding up of zeros."""

    size = 2

    def __init__(self):
        super().__init__()
        self.reduced = []

    def grouped_allreduce(self, tensors, op, *, name):
        self.reduced += [tensor.numpy() for tensor in tensors]
        return list(tensors)


def test_links_are_timed_by_all_reduces_of_zeros():
    world = Alone()
    found = link_probe.measure(world)
    assert tuple(timed.size for timed in found) == link_probe.SIZES
    assert [array.nbytes for array in world.reduced] == [
        size for size in link_probe.SIZES for _ in range(link_probe.REPEATS + 1)
    ]
    assert not any(array.any() for array in world.reduced)


def test_processes_of_one_host_have_a_place_each_and_hosts_share_theirs():
    assert links.places("aaa") == [0, 1, 2] and links.places("abab") == [0, 1, 0, 1]


def of_data(hosts=("a", "b"), **more):
    exchange = data_plan.exchange(RingConfig(reduction="per_tensor"), [50_000] * 4, len(hosts))
    timed = [Timed(s, links.seconds(reduction("ring", s, len(hosts)), hosts, LINK)) for s in (4096, 2**20)]
    return prediction.before_steps(exchange, hosts, timed, ranks=len(hosts), start=1, step=10, **more)


def test_bytes_and_communication_are_known_before_the_first_step():
    found = of_data(statistics=6)
    assert found.sent == found.received == [800_000, 800_000] and found.counted == 800_000
    assert found.crossing == {"a": [800_000, 800_000], "b": [800_000, 800_000]}
    assert found.communication_s == pytest.approx(4 * 2 * 0.001 + 0.8)
    assert found.statistics_s == pytest.approx(6 * (2 * 0.001 + 4096 / 1e6))
    assert found.step_s is None and (found.began, found.step) == (10, 10)
    assert of_data(("a", "a")).crossing == {}


def test_without_links_that_were_timed_there_are_bytes_and_no_seconds():
    exchange = Exchange(((Flow(1, 0, 500.0),), (Flow(0, 1, 500.0),)), 2, 1, 500, of_all=False)
    found = prediction.before_steps(exchange, ("a", "b"), (), ranks=1, start=1, step=0)
    assert found.sent == [500, 500] and found.communication_s is None and found.crossing == {}
    assert prediction.after_steps(found, [(1.0, 0.5)], 6, 0.0) == found


def test_messages_of_a_divided_network_cross_links_that_are_not_timed():
    flows = (Flow(0, 1, 300.0), Flow(1, 0, 200.0), Flow(1, 2, 50.0))
    exchange = Exchange((flows,), 3, 1, 300, messages=(4, 9, 0))
    found = prediction.before_steps(exchange, ("a", "a", "b"), (), ranks=3, start=1, step=0)
    assert (found.sent, found.received, found.messages) == ([300, 250, 0], [200, 300, 50], [4, 9, 0])
    assert found.crossing == {"a": [50, 0], "b": [0, 50]} and found.communication_s is None
    ranks = {r: (step(7, 2.5, 0.5, Transfer("wait", 0, size, 0.1)),) for r, size in enumerate((200, 300, 50))}
    assert prediction.compare(found, RunTelemetry(ranks)) == {
        "counted_bytes": {"predicted": 300, "measured": 300, "ratio": 1.0}
    }


def test_a_link_to_servers_on_a_host_of_their_own_is_not_that_between_ranks_of_one_host():
    exchange = layout.exchange([4000], 2, colocated=False, piece=1000, messages=4)
    timed = [Timed(4096, 0.1), Timed(65_536, 0.2)]
    far, near = (
        prediction.before_steps(exchange, ("a", "a", server), timed, ranks=2, start=1, step=0)
        for server in "ba"
    )
    assert far.link is None and far.communication_s is None and far.crossing["b"] == [8000, 8000]
    assert near.link is not None and near.communication_s is not None


def test_the_latency_of_servers_is_half_of_an_order_and_its_answer():
    found = of_data(round_trip_s=0.01)
    assert found.link == pytest.approx(HostLink(0.005, 1e6))


def test_a_step_is_the_slowest_rank_and_what_it_still_waits():
    found = prediction.after_steps(of_data(statistics=1), [(1.0, 0.4), (2.0, 0.8)], 16, 0.092)
    statistics, waits = 0.006096, 0.9 - 0.8 * 3 / 4
    assert found.communication_s == pytest.approx(0.9) and found.step == 16
    assert found.exposed_s == pytest.approx(waits + statistics)
    assert found.step_s == pytest.approx(2.0 + waits + statistics)
    assert found.step_at_least_s == pytest.approx(2.0 + 0.1 + statistics)
    assert found.step_at_most_s == pytest.approx(2.0 + 0.9 + statistics)


def step(number, seconds, exposed, *transfers, first=False):
    return Step(
        number, seconds, 0.1, 0.2, seconds - exposed - 0.4, exposed, 0.0, 0.1, 0.0, first, tuple(transfers)
    )


def test_computing_is_the_median_of_the_first_steps_without_the_traced_one():
    steps = [step(1, 9.0, 1.0, first=True), *(step(k, 1.0 + k, 0.5) for k in (2, 3, 7))]
    assert prediction.computing(steps) == pytest.approx((3.5, 3.1))
    assert prediction.computing(steps[:1]) is None


def measured(*, bytes=800_000):
    def reduce(seconds):
        return Transfer("reduce", None, bytes, seconds)

    ranks = {
        0: tuple(step(k, 2.5, 0.3, reduce(0.9)) for k in range(11, 31)),
        1: tuple(step(k, 2.5, 0.7, reduce(1.4)) for k in range(11, 31)),
    }
    epoch = HostEpoch(
        1, 30, 50.0, "a", (0,), {"lo": {"sent": 9**9}, "eth0": {"sent": 17_000_000}}, 1, 1, 1, 1
    )
    return RunTelemetry(ranks, {"a": (dataclasses.replace(epoch, epoch=0, step=10), epoch)})


def test_both_stand_side_by_side():
    known = prediction.after_steps(of_data(), [(1.0, 0.4), (2.0, 0.8)], 16, 0.0)
    found = prediction.compare(known, measured())
    assert found["counted_bytes"] == {"predicted": 800_000, "measured": 800_000, "ratio": 1.0}
    # 20 steps of this start; the loopback carries nothing to another host.
    assert found["crossing_bytes"]["measured"] == 850_000
    assert {name: pair["measured"] for name, pair in found.items() if name.endswith("_s")} == {
        "communication_s": 0.9,
        "exposed_s": 0.3,
        "step_s": 2.5,
    }
    assert found["step_s"]["ratio"] == pytest.approx(known.step_s / 2.5, abs=1e-4)


def test_steps_that_the_prediction_was_made_from_are_not_compared_with_it():
    known = prediction.after_steps(of_data(), [(1.0, 0.4)], 30, 0.0)
    assert set(prediction.compare(known, measured())) == {"crossing_bytes"}
    assert prediction.compare(of_data(("a", "a")), RunTelemetry()) == {}


def test_a_prediction_is_read_as_it_was_written(tmp_path):
    assert RunPrediction.read(tmp_path) is None
    known = prediction.after_steps(of_data(), [(1.0, 0.4)], 16, 0.0)
    path = tmp_path / prediction.NAME
    path.write_text(json.dumps(known.model_dump(mode="json")))
    assert RunPrediction.read(tmp_path) == known


@pytest.mark.parametrize(
    ("content", "says"), [("[]", "damaged"), ('{"version": 2}', "version 2"), ('{"start": 1}', "began")]
)
def test_a_damaged_or_later_prediction_is_refused(tmp_path, content, says):
    (tmp_path / prediction.NAME).write_text(content)
    with pytest.raises(RunError, match=says):
        RunPrediction.read(tmp_path)
