"""What binds a run, from made-up steps whose cause is known."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from trainer import config as configuration
from trainer.telemetry.facts import RunFacts
from trainer.telemetry.losses import losses
from trainer.telemetry.records import HostEpoch, RunTelemetry, ServerStep, Step
from trainer.telemetry.verdict import verdict

TEXT = """
name: made-up
data: {shards: s, augment: {motion: {probability: 0.4}}}
train: {global_batch: 8, strategy: {reduction: grouped}}
"""
CONFIG = configuration.parse(TEXT).model_dump(mode="json")
FACTS = RunFacts(hosts=("n1", "n2", "n3", "n4"), bytes_sent=8 * 2**20, config=CONFIG)


def steps(
    computing: list[float],
    *,
    input_wait: list[float] | None = None,
    wire: float = 0.0,
    hidden: float = 0.0,
    fixed: float = 0.02,
    noise: float = 0.01,
    count: int = 40,
) -> RunTelemetry:
    """Ranks that wait for the last of them in each step, then for the wire; seconds."""
    rng = np.random.default_rng(0)
    ranks = len(computing)
    told: dict[int, list[Step]] = {rank: [] for rank in range(ranks)}
    for number in range(1, count + 1):
        waits = np.array(input_wait or [0.0] * ranks)
        computed = np.array(computing) * rng.normal(1, noise, ranks)
        own = waits + computed
        whole = own.max() + wire
        for rank in range(ranks):
            parts = {
                "input_wait": waits[rank],
                "forward": 0.3 * computed[rank],
                "backward": (0.7 - fixed) * computed[rank],
                "update": fixed / 2 * computed[rank],
                "other": fixed / 2 * computed[rank],
                "exposed": whole - own[rank],
            }
            first = number == 1
            scale = 50.0 if first else 1.0
            parts = {name: float(scale * value) for name, value in parts.items()}
            told[rank].append(Step(number, sum(parts.values()), overlapped=hidden, first=first, **parts))
    return RunTelemetry({rank: tuple(own) for rank, own in told.items()})


def host(cpu_percent: float, cores: int = 2, **changes: object) -> dict[str, tuple[HostEpoch, ...]]:
    epoch = HostEpoch(1, 40, 10.0, "n1", (0,), {}, cpu_percent, cores, 2**30, 2**34)
    return {"n1": (dataclasses.replace(epoch, **changes),)}


def judge(telemetry: RunTelemetry, facts: RunFacts = FACTS):
    found = verdict(telemetry, facts)
    assert found is not None
    json.dumps(found.json(), allow_nan=False)
    return found


def tried(found) -> list[str]:
    for setting in found.settings:  # every proposal is a configuration that can be read
        configuration.parse(TEXT, setting.words.split())
        assert setting.changes != setting.now
    return [setting.words for setting in found.settings]


def test_a_run_whose_time_goes_into_computing_is_well():
    found = judge(steps([0.5] * 4, wire=0.03, input_wait=[0.001] * 4))
    assert (found.bound, found.cause, found.is_well) == ("compute", None, True)
    assert found.gains["network"] == pytest.approx(0.06, abs=0.02) and not found.settings
    assert "as it should be" in found.summary


def test_one_rank_alone_has_neither_network_nor_stragglers():
    found = judge(steps([0.5]))
    assert found.is_well and found.gains.keys() == {"compute", "input"}
    assert "communication" not in " ".join(found.evidence)


def test_a_slow_wire_is_the_network_and_hidden_communication_is_told():
    found = judge(steps([0.5] * 4, wire=0.5, hidden=0.25))
    assert (found.bound, found.cause) == ("network", None)
    assert found.gain_at_most == pytest.approx(0.5, abs=0.02)
    text = " ".join(found.evidence)
    assert "33% of it hidden" in text and "each rank sends 8.0 MiB, that is 89 Mbit/s" in text
    assert tried(found) == [
        "train.strategy.compression=float16",
        "train.strategy.reduction=buckets",
        "train.strategy.bucket_mb=0.5",
        "train.accumulation=2 train.global_batch=16",
    ]


def test_few_bytes_that_take_long_are_too_small_steps():
    found = judge(steps([0.01] * 2, wire=0.01), dataclasses.replace(FACTS, bytes_sent=20_000))
    assert (found.bound, found.cause) == ("network", "small steps")
    # They leave as one message already.
    assert tried(found) == ["train.global_batch=32", "train.sync_batch_norm=false"]


def test_no_message_is_advised_against_that_is_not_sent():
    config = configuration.parse(TEXT.replace("grouped", "buckets")).model_dump(mode="json")
    small = dataclasses.replace(FACTS, bytes_sent=20_000, config=config)
    slow = steps([0.01] * 2, wire=0.01)
    both = ["train.strategy.reduction=grouped", "train.sync_batch_norm=false"]
    for reductions, norms, advised in ((2, 3, both), (1, 3, both[1:]), (2, 0, both[:1]), (1, 0, [])):
        found = judge(slow, dataclasses.replace(small, reductions=reductions, batch_norms=norms))
        assert tried(found) == ["train.global_batch=32", *advised]


def test_waiting_for_batches_is_the_input_although_only_one_rank_waits():
    """The others wait as long, for its gradients: that is neither the network nor a slow rank."""
    found = judge(steps([0.5] * 4, input_wait=[0.0, 0.4, 0.0, 0.0], wire=0.02))
    assert found.bound == "input"
    assert found.gain_at_most == pytest.approx(0.4 / 0.93, abs=0.02)
    assert found.gains["network"] < 0.05 and found.gains["straggler"] < 0.05
    assert "rank 1 @ n2 waits longest for its batches: 400 ms" in " ".join(found.evidence)
    assert tried(found)[:2] == ["data.reader_threads=4", "data.cache=memory"]
    assert "data.augment.motion.probability=0.1" in tried(found)


def test_more_reading_threads_are_not_proposed_where_no_core_is_free():
    telemetry = dataclasses.replace(steps([0.5], input_wait=[0.4]), hosts=host(199.0))
    assert "data.reader_threads=4" not in tried(judge(telemetry))


@pytest.mark.parametrize("slow", [[1], [2, 3]])
def test_slow_ranks_are_named_with_their_hosts(slow):
    computing = [1.0 if rank in slow else 0.5 for rank in range(4)]
    found = judge(steps(computing, wire=0.05))
    assert found.bound == "straggler"
    assert found.gain_at_most == pytest.approx(0.5 / 1.05, abs=0.03)
    assert all(f"rank {rank} @ n{rank + 1}" in found.summary for rank in slow)
    text = " ".join(found.evidence)
    assert f"rank {slow[0]} @ n{slow[0] + 1} computes" in text and "(2.0" in text and "backward" in text
    assert found.gains["network"] == pytest.approx(0.05, abs=0.02)


def test_a_slow_rank_is_slow_at_communicating_too_and_a_slow_wire_is_told_apart():
    grossly = judge(steps([0.1, 0.6], wire=0.7))
    assert grossly.bound == "straggler" and grossly.gains["network"] > 0.4
    slightly = judge(steps([0.5, 0.65], wire=0.7))
    assert slightly.bound == "network" and losses(steps([0.5, 0.65]).steps).slow == (1,)


def test_being_handed_a_batch_is_a_fixed_cost_and_not_the_input():
    found = judge(steps([0.004], input_wait=[0.0018]))
    assert (found.bound, found.cause) == ("compute", "small steps") and found.gains["input"] < 0.01


def test_ranks_of_one_host_have_no_link_to_wait_for():
    found = judge(steps([0.5] * 2, wire=0.5), dataclasses.replace(FACTS, hosts=("n1", "n1")))
    assert (found.bound, found.cause) == ("network", "small steps")


def test_of_two_ranks_the_quicker_one_is_the_usual_one():
    assert losses(steps([0.5, 1.0]).steps).slow == (1,)


def test_ranks_that_are_late_in_turn_are_told_apart_from_a_slow_one():
    turns = steps([0.5] * 4, noise=0.5, count=400)
    found = judge(turns)
    assert (found.bound, found.cause) == ("straggler", "late in turn")
    assert not losses(turns.steps).slow


def test_fixed_costs_show_that_steps_are_too_small():
    found = judge(steps([0.01], fixed=0.4), dataclasses.replace(FACTS, bytes_sent=0))
    assert (found.bound, found.cause, found.is_well) == ("compute", "small steps", False)
    assert found.gain_at_most == pytest.approx(0.4, abs=0.01)
    assert tried(found) == ["train.global_batch=32"]


def test_idle_gpus_show_it_too_and_idle_cores_do_not():
    alone = steps([0.5])
    gpu = {"name": "g", "utilisation": 20.0, "memory_bytes": 0, "power_w": 0.0}
    for hosts, cause in (
        (host(60.0), None),
        (host(150.0, gpus=(gpu,)), "small steps"),
        (host(60.0, gpus=({**gpu, "utilisation": 95.0},)), None),
    ):
        assert judge(dataclasses.replace(alone, hosts=hosts)).cause == cause


def serving(*servers: tuple[float, float, float, float]) -> dict[int, tuple[ServerStep, ...]]:
    return {k: tuple(ServerStep(n, *times) for n in range(1, 9)) for k, times in enumerate(servers)}


def facts_of_servers(count: int, **changes: object) -> RunFacts:
    return dataclasses.replace(FACTS, strategy="parameter-server", servers=count, **changes)


def test_one_server_of_four_workers_is_what_they_wait_for():
    telemetry = dataclasses.replace(steps([0.5] * 4, wire=0.8), servers=serving((0.5, 0.01, 0.3, 0.5)))
    found = judge(telemetry, facts_of_servers(1))
    assert found.bound == "server" and "network" not in found.gains
    text = " ".join(found.evidence)
    assert "4 workers share 1 server: the link of each server carries 4.0 times" in text
    assert "server 0 is busy for 62% of the time" in text


def test_as_many_servers_as_workers_wait_for_the_network_unless_one_has_more_to_do():
    even = dataclasses.replace(
        steps([0.5] * 2, wire=0.8), servers=serving((0.4, 0.1, 0.3, 0.5), (0.4, 0.1, 0.3, 0.5))
    )
    facts = facts_of_servers(2, colocated=True)
    assert judge(even, facts).bound == "network"
    uneven = serving((0.1, 0.02, 0.1, 1.1), (0.5, 0.1, 0.5, 0.2))
    assert judge(dataclasses.replace(even, servers=uneven), facts).bound == "server"
    updating = serving((0.1, 0.6, 0.1, 0.5), (0.1, 0.6, 0.1, 0.5))
    assert judge(dataclasses.replace(even, servers=updating), facts).bound == "server"


def test_asynchronous_workers_wait_for_the_server_and_never_for_a_slow_one():
    told = {0: steps([0.5], count=40).steps[0], 1: steps([1.5], count=14).steps[0]}
    facts = facts_of_servers(1, asynchronous=True)
    assert judge(RunTelemetry(told), facts).bound == "compute"
    waiting = {
        rank: tuple(dataclasses.replace(s, seconds=s.seconds + 0.7, exposed=0.7) for s in own)
        for rank, own in told.items()
    }
    assert judge(RunTelemetry(waiting), facts).bound == "server"


def test_what_epochs_spend_outside_of_steps_is_told():
    telemetry = dataclasses.replace(steps([0.5], count=11), rows=({"epoch": 1, "step": 11, "seconds": 60.0},))
    assert "50% of the epochs' time is outside of steps" in " ".join(judge(telemetry).evidence)


def test_a_run_of_first_steps_only_has_no_verdict():
    assert verdict(steps([0.5], count=1), FACTS) is None
    assert verdict(RunTelemetry(), FACTS) is None


def test_without_a_known_configuration_nothing_is_proposed():
    assert judge(steps([0.5] * 2, wire=0.5), RunFacts()).settings == ()
