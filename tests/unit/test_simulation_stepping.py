"""Steps of ranks that all hold the network, their timeline, and clusters of which one thing is better."""

from __future__ import annotations

import json

import pytest
from planned_networks import small

from trainer.forecast import forecasts
from trainer.planning.exchange import ExchangePart, equal, left
from trainer.planning.simulation import cluster, devices, epoch, stepping
from trainer.planning.simulation.collectives import Exchanged
from trainer.planning.simulation.fabric import ClusterFabric
from trainer.planning.simulation.stepping import Work
from trainer.telemetry.trace import MESSAGES, STEP, TRANSFERS

WORK = Work(1.0, 2.0, 0.5)


def exchanged(seconds):
    return Exchanged(0.0, seconds, 1.0, 1.0)


@pytest.mark.parametrize(
    ("seconds", "parts", "waits"),
    # Nothing, all but the last part, and all but what the backward pass hides.
    [(0.0, 4, 0.0), (1.0, 4, 0.25), (4.0, 4, 2.5), (4.0, 1, 4.0)],
)
def test_ranks_wait_for_what_the_backward_pass_does_not_hide(seconds, parts, waits):
    step = stepping.whole_network(WORK, exchanged(seconds), equal(parts), 8, 0.0, rounds_s=0.125)
    assert step == stepping.StepSeconds(3.5 + waits + 0.125, 3.5, 0.0, waits + 0.125)
    events = forecasts.of_whole(WORK, step, exchanged(seconds), equal(parts))[0]
    ends = {name: start + lasts for _, name, start, lasts, _ in events}
    assert ends["update"] == pytest.approx(step.step_s)
    moving = [(start, start + lasts) for thread, _, start, lasts, _ in events if thread == TRANSFERS]
    assert len(moving) == (parts if seconds else 0)
    if seconds:
        assert moving[-1][1] == pytest.approx(3.0 + waits) and moving[0][0] == pytest.approx(1 + 2 / parts)


def test_parts_that_are_complete_early_hide_more_than_equal_ones():
    # Three quarters of the bytes are there after a tenth of the backward pass, as of a ResNet.
    parts = [ExchangePart(0.1, 0.75), ExchangePart(1.0, 0.25)]
    assert left([1.5, 0.5], parts, 2.0) == pytest.approx(0.5)
    assert left([3.0, 1.0], parts, 2.0) == pytest.approx(0.2 + 3.0 + 1.0 - 2.0)
    assert stepping.whole_network(WORK, exchanged(2.0), parts, 8, 0.0).waiting_s == pytest.approx(0.5)
    assert stepping.whole_network(WORK, exchanged(2.0), equal(2), 8, 0.0).waiting_s == pytest.approx(1.0)


def test_all_wait_for_the_slowest_rank():
    step = stepping.whole_network(WORK, exchanged(0.0), equal(1), 64, 0.1)
    assert step.step_s == pytest.approx(3.5 * epoch.slowest(64, 0.1))
    assert step.slow_s == pytest.approx(3.5 * 0.1 * epoch.largest_of(64)) and step.busy_s == 3.5
    # Its longer backward pass hides more.
    hidden = stepping.whole_network(WORK, exchanged(4.0), equal(4), 64, 0.1)
    assert hidden.waiting_s == pytest.approx(4.0 - 0.75 * 2.0 * epoch.slowest(64, 0.1))


def test_a_timeline_opens_in_a_trace_viewer():
    step = stepping.whole_network(WORK, exchanged(1.0), equal(2), 2, 0.0)
    told = json.loads(forecasts.trace(forecasts.of_whole(WORK, step, exchanged(1.0), equal(2))))[
        "traceEvents"
    ]
    names = [one["args"]["name"] for one in told if one["ph"] == "M" and one["name"] == "process_name"]
    assert names == ["rank 0, simulated"]
    spans = {(one["tid"], one["name"]): (one["ts"], one["dur"]) for one in told if one["ph"] == "X"}
    assert spans[STEP, "backward"] == (1e6, 2e6) and spans[MESSAGES, "wait"] == (3e6, 0.5e6)


def test_one_thing_is_better_and_the_rest_as_it_was():
    known = cluster.load("cpu-ethernet")
    links = cluster.faster_links(known, 2.0)
    assert links.hosts[0].interface.bytes_per_second.value == 2 * 1.17e9
    assert links.network.levels[0].bytes_per_second.value == 40e9
    assert links.hosts[0].inside.latency_s == known.hosts[0].inside.latency_s
    quick = cluster.quicker_links(known, 2.0)
    assert quick.hosts[0].interface.latency_s.value == 15e-6 and quick.devices == known.devices
    disks = cluster.faster_disks(known, 2.0).storage
    assert disks.read_bytes_per_second.value == 2e9 and disks.shared_read_bytes_per_second.value == 40e9
    faster = cluster.faster_devices(known, 2.0)
    before, after = (
        devices.computed(small(), ClusterFabric(one, 1), name="small") for one in (known, faster)
    )
    halved = cluster.faster_profile(before, 2.0)
    for one in before.operations:
        for profile in (after, halved):
            assert profile.operation(one.name).backward_s[0] == pytest.approx(one.backward_s[0] / 2)
    assert halved.update.seconds[0] == pytest.approx(after.update.seconds[0])
