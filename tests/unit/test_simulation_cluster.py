"""Cluster files, the ways of messages, collectives over them, and what an epoch takes."""

from __future__ import annotations

import math
import random
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from planned_networks import small
from wording import fails_with

from trainer.errors import InputError
from trainer.planning import communication
from trainer.planning.frames import BARE
from trainer.planning.profile import ProfiledHandling
from trainer.planning.simulation import cluster, collectives, devices, epoch
from trainer.planning.simulation.fabric import ClusterFabric

ALL = dict(cluster.shipped())


def changed(name="dgx-a100", **changes):
    """A shipped cluster with other values; keys with __ for dots, numbers for entries of lists."""
    tree = yaml.safe_load(ALL[name].read_text())
    for key, value in changes.items():
        *way, last = [int(part) if part.isdigit() else part for part in key.split("__")]
        at = tree
        for part in way:
            at = at[part]
        at[last] = value
    return cluster.parse(yaml.safe_dump(tree), Path("mine.yaml"))


def flat(rate, *, devices=1, latency=0.0):
    """Hosts at one switch; inside a host each pair has a link of 10 times the rate."""
    figure = {"value": rate, "source": "test"}
    return changed(
        "cpu-ethernet",
        hosts__0__devices=devices,
        hosts__0__inside={
            "kind": "pairs", "latency_s": {"value": latency, "source": "test"},
            "bytes_per_second": {"value": 10 * rate, "source": "test"},
        },
        hosts__0__interface__bytes_per_second=figure,
        hosts__0__interface__latency_s={"value": latency, "source": "test"},
        network__levels=[],
    )  # fmt: skip


def test_five_clusters_at_least_are_shipped_and_every_figure_has_its_source():
    assert len(ALL) >= 5
    for name in ALL:
        found = cluster.load(name)
        assert found.name == name

        def walk(node, where):
            if isinstance(node, dict) and set(node) == {"value", "source"}:
                assert (
                    "estimated" in node["source"]
                    or any(str(year) in node["source"] for year in range(2009, 2027))
                    or "docs/decisions" in node["source"]
                ), where
            elif isinstance(node, dict | list | tuple):
                pairs = node.items() if isinstance(node, dict) else enumerate(node)
                for key, value in pairs:
                    walk(value, f"{where}.{key}")

        walk(found.model_dump(), name)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hosts__0__device": "b100"}, "there is no device 'b100' among a100"),
        ({"devices__a100__efficiency": {"value": 1.5, "source": "x"}}, "efficiency: value must be at most 1"),
        ({"devices__a100__memory_bytes": {"value": 0, "source": "x"}}, "bytes.value: must be more than 0"),
        ({"devices__a100__memory_bytes": {"value": 1}}, "memory_bytes.source"),
        ({"devices__a100__memory_bytes": 40}, "must be a section with keys of its own"),
        ({"netwrok": {}}, "unknown key 'netwrok'. Did you mean 'network'?"),
        ({"network__kind": "dragonfly", "network__levels": []}, "a dragonfly has one, not 0"),
        ({"hosts__0__count": 0}, "must be at least 1"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_refused_with_file_and_key(changes, said):
    with fails_with(InputError) as caught:
        changed(**changes)
    assert said in str(caught.value) and "docs/how-to/simulate.md" in caught.value.cure


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hosts__0__devices": 0}, "hosts.devices, entry 1: must be at least 1, not 0"),
        ({"hosts__0__watts__value": -1}, "hosts.watts.value, entry 1: must be at least 0, not -1"),
        ({"hosts__0__inside__kind": "ring"}, "hosts.inside.kind, entry 1: must be 'switch', "),
        ({"hosts__0": 3}, "hosts, entry 1: must be a section with keys of its own, not 3"),
        ({"hosts": []}, "hosts: must have at least 1 entries, not []"),
    ],
)
def test_one_wrong_figure_of_hosts_is_one_error(changes, said):
    with pytest.raises(InputError) as caught:
        changed(**changes)
    assert said in caught.value.message and "\n" not in caught.value.message


def test_levels_contain_each_other():
    level = yaml.safe_load(ALL["dgx-a100"].read_text())["network"]["levels"][0]
    with fails_with(InputError):
        changed(network__levels=[level, {**level, "hosts": 30}])


def test_an_unknown_name_a_missing_file_and_a_file_without_keys_are_refused(tmp_path):
    with fails_with(InputError):
        cluster.load("dgx-a10")
    with fails_with(InputError):
        cluster.load(str(tmp_path / "no.yaml"))
    with fails_with(InputError):
        cluster.parse("- 1", Path("mine.yaml"))
    with fails_with(InputError):
        ClusterFabric(changed(hosts__0__count=1), 9)


def test_a_message_takes_the_links_of_its_way():
    fabric = ClusterFabric(cluster.load("dgx-a100"), 400)
    assert fabric.path(0, 7).resources == (("port out of rank", 0), ("port into rank", 7))
    inside_a_group = fabric.path(1, 19)  # host 2, its fourth device
    assert inside_a_group.resources == (
        ("interface out of host", 0, 1),
        ("interface in of host", 2, 3),
    )
    across = fabric.path(0, 399)
    assert across.resources == (
        ("interface out of host", 0, 0),
        ("level 1 up", 0),
        ("level 1 down", 2),
        ("interface in of host", 49, 7),
    )
    assert across.latency_s == pytest.approx(6e-6) and inside_a_group.latency_s == pytest.approx(5e-6)
    dragonfly = ClusterFabric(cluster.load("dragonfly-a100"), 4 * 128 * 2)
    assert ("between groups", 0, 1) in dragonfly.path(0, 4 * 128).resources
    bus = ClusterFabric(cluster.load("cpu-ethernet"), 4)
    assert bus.path(0, 1).resources == (("bus of host", 0),) and bus.host(3) == 1


def test_ranks_fill_hosts_of_several_kinds_in_their_order():
    one = yaml.safe_load(ALL["dgx-a100"].read_text())["hosts"][0]
    mixed = changed(hosts=[{**one, "count": 2, "devices": 2}, {**one, "devices": 3}])
    fabric = ClusterFabric(mixed, 9)
    assert [fabric.host(rank) for rank in range(9)] == [0, 0, 1, 1, 2, 2, 2, 3, 3]
    assert [fabric.place(rank) for rank in range(9)] == [0, 1, 0, 1, 0, 1, 2, 0, 1]
    assert fabric.hosts == 4


@pytest.mark.parametrize("algorithm", communication.ALGORITHMS)
@pytest.mark.parametrize("ranks", [2, 3, 8, 13])
def test_on_one_switch_a_reduction_costs_what_the_cost_model_of_studies_says(algorithm, ranks):
    rounds = communication.reduction(algorithm, 6e9, ranks)
    said = communication.predict(rounds, range(ranks), bytes_per_second=1e6, frames=BARE, latency_s=0.25)
    found = collectives.all_reduce(algorithm, ClusterFabric(flat(1e6, latency=0.25), ranks)).of(6e9)
    assert found.seconds == pytest.approx(said.seconds)
    assert found.sent == pytest.approx(max(one.sent for one in said.interfaces))
    assert found.all_sent == pytest.approx(sum(one.sent for one in said.interfaces))


def test_the_ring_is_no_slower_the_more_ranks_there_are_and_one_server_is():
    """Growth of both (system 4): 2(n-1)/n M/B against n M/B each way, at once."""
    for ranks in (2, 8, 64):
        fabric = ClusterFabric(flat(1e6), ranks)
        assert collectives.all_reduce("ring", fabric).transfer_s == pytest.approx(
            2 * (ranks - 1) / ranks / 1e6
        )
        with_server = ClusterFabric(flat(1e6), ranks + 1)
        server = collectives.cost(communication.repeated(communication.servers([1.0], ranks)), with_server)
        assert server.transfer_s == pytest.approx(ranks / 1e6)


def test_by_host_less_crosses_interfaces_and_a_host_alone_needs_none():
    fabric = ClusterFabric(flat(1e6, devices=4, latency=0.5), 16)
    found = collectives.all_reduce("by-host", fabric)
    # Inside: 3 rounds of a quarter at 10 times the rate, twice; between: 6 rounds of four times 1/16.
    assert found.transfer_s == pytest.approx(2 * 3 / 4 / 1e7 + 6 * 4 / 16 / 1e6)
    assert found.latency_s == pytest.approx(12 * 0.5)
    assert found.sent == pytest.approx(2 * 15 / 16)
    alone = collectives.all_reduce("by-host", ClusterFabric(flat(1e6, devices=4), 4))
    assert alone.transfer_s == pytest.approx(2 * 3 / 4 / 1e7)
    assert collectives.all_reduce("ring", ClusterFabric(flat(1e6), 1)).seconds == 0.0


def test_owners_among_groups_send_what_a_ring_would():
    found = collectives.Direct(2, 4, ClusterFabric(flat(1e6), 8)).of([100.0, 0.0])
    assert found.sent == pytest.approx(2 * 3 / 4 * 100) and found.all_sent == pytest.approx(4 * 150)


def test_a_hundred_thousand_ranks_take_seconds():
    began = time.process_time()
    fabric = ClusterFabric(cluster.load("dgx-a100"), 100_000)
    found = [collectives.all_reduce(way, fabric) for way in ("ring", "by-host")]
    assert time.process_time() - began < 30
    for one in found:
        assert one.sent == pytest.approx(2, rel=1e-4)
    assert found[1].latency_s < found[0].latency_s / 7


def test_operations_take_their_flops_or_their_bytes_whichever_is_longer():
    fabric = ClusterFabric(cluster.load("p100-ethernet"), 5)
    made = devices.computed(small(), fabric, name="small")
    by_bytes = 4 * (32 + 64) / 732e9 + 4 * 24 / 732e9
    assert made.operation("conv").forward_s[0] == pytest.approx(5e-6 + max(by_bytes, 1000 / (9.3e12 * 0.4)))
    assert made.operation("relu").forward_s[4] == pytest.approx(5e-6 + 4 * 128 / 732e9)
    assert made.operation("relu").backward_s[4] == pytest.approx(2 * (5e-6 + 4 * 128 / 732e9))
    assert made.link(0, 1).bytes_per_second == 12e9 and made.link(0, 4).bytes_per_second == 3.125e9
    assert [one.host for one in made.devices] == ["host 0"] * 4 + ["host 1"]


def test_a_measured_profile_is_scaled_by_flops_and_by_bandwidth():
    tree = yaml.safe_load(ALL["dgx-a100"].read_text())
    slower = {**tree["devices"]["a100"]}
    slower["flops_per_second"] = {"value": 156e12 / 4, "source": "test"}
    slower["memory_bytes_per_second"] = {"value": 1555e9 / 2, "source": "test"}
    two = changed(devices={**tree["devices"], "old": slower})
    fabric = ClusterFabric(two, 2)
    measured = devices.computed(small(), ClusterFabric(two, 1), name="small")
    found = devices.scaled(measured, fabric, measured_on="old")
    assert found.operation("conv").forward_s == pytest.approx(
        [measured.operation("conv").forward_s[0] / 4] * 2
    )
    assert found.operation("relu").backward_s == pytest.approx(
        [measured.operation("relu").backward_s[0] / 2] * 2
    )
    assert found.update.seconds == pytest.approx([measured.update.seconds[0] / 2] * 2)
    assert (
        devices.scaled(measured, fabric).operation("conv").forward_s[1]
        == measured.operation("conv").forward_s[0]
    )
    with fails_with(InputError):
        devices.scaled(measured, fabric, measured_on="v100")
    assert found.handling is None
    handling = ProfiledHandling(message_s=(1e-4, 9.0), byte_s=(1e-9, 9.0))
    known = measured.model_copy(update={"handling": handling, "task_s": (2e-5,)})
    of_two = devices.scaled(known, fabric, measured_on="old")
    assert of_two.task_s == (2e-5, 2e-5) and found.task_s is None
    # Joining boxes moves bytes, and a call takes what it takes.
    assert of_two.handling_s(1, 1000) == pytest.approx(1e-4 + 1000 * 1e-9 / 2)


@pytest.mark.parametrize("count", [1, 2, 100])
def test_the_largest_of_normal_numbers(count):
    drawn = random.Random(0)
    mean = sum(max(drawn.gauss(0, 1) for _ in range(count)) for _ in range(4000)) / 4000
    assert epoch.largest_of(count) == pytest.approx(mean, abs=0.05)
    assert epoch.slowest(count, 0.1) == pytest.approx(1 + 0.1 * epoch.largest_of(count))


def test_hosts_read_up_to_what_their_storage_gives_them_together():
    cpu = cluster.load("cpu-ethernet")
    assert epoch.reading_s(cpu, 10, 1e10) == pytest.approx(1.0)
    assert epoch.reading_s(cpu, 1000, 1e10) == pytest.approx(0.5)


@given(st.floats(1, 600), st.floats(3600, 1e7), st.floats(0, 3600))
def test_no_other_interval_is_much_better_than_dalys(takes, mean, restart):
    best = epoch.lengthened(epoch.daly(takes, mean), takes, restart, mean)
    for factor in (0.25, 0.5, 0.9, 1.1, 2.0, 4.0):
        other = epoch.lengthened(factor * epoch.daly(takes, mean), takes, restart, mean)
        assert best <= other * 1.001 and best >= 1.0
    assert epoch.daly(takes, mean) == pytest.approx(epoch.young(takes, mean), rel=0.5) or takes > mean / 50


def test_failures_by_simulation_take_as_long_as_the_formula_says():
    interval, takes, restart, mean = 600.0, 30.0, 120.0, 4000.0
    drawn, total, segments = random.Random(1), 0.0, 20_000
    for _ in range(segments):
        while (fails := drawn.expovariate(1 / mean)) < interval + takes:
            total += fails
            while (again := drawn.expovariate(1 / mean)) < restart:
                total += again
            total += restart
        total += interval + takes
    assert total / (segments * interval) == pytest.approx(
        epoch.lengthened(interval, takes, restart, mean), rel=0.02
    )
    assert math.isinf(epoch.lengthened(1e9, 1.0, 1.0, 1.0))


def test_energy_and_cost_are_of_devices_and_their_hosts():
    cloud = ClusterFabric(cluster.load("cloud-p4d"), 12)
    found = epoch.used(cloud, 3600.0, 0.5)
    assert found.joules == pytest.approx(3600 * (12 * (0.5 * 400 + 0.5 * 55) + 2 * 1500))
    assert found.dollars == pytest.approx(12 * 4.1)
    assert epoch.used(ClusterFabric(cluster.load("dgx-a100"), 1), 1.0, 1.0).dollars is None
