"""What binds a run whose network is divided over ranks, from made-up steps whose cause is known."""

from __future__ import annotations

import dataclasses

import pytest

from trainer import config as configuration
from trainer.telemetry import divided
from trainer.telemetry.facts import RunFacts
from trainer.telemetry.intervals import Transfer
from trainer.telemetry.records import RunTelemetry, Step
from trainer.telemetry.verdict import Verdict, verdict

MIB = 2**20


def facts(strategy: str = "{name: spatial}", *, ranks: int = 2, batch: int = 2, **known: object) -> RunFacts:
    train = f"{{global_batch: {batch}, strategy: {strategy}}}"
    config = configuration.parse(f"name: made-up\ndata: {{shards: s}}\ntrain: {train}\n")
    given = {"bytes_sent": 8 * MIB, "messages_sent": 40, "flops": (1.0,) * ranks, "parameters": 10**8}
    return RunFacts(
        strategy=config.train.strategy.name,
        hosts=tuple(f"n{rank}" for rank in range(ranks)),
        config=config.model_dump(mode="json"),
        **{**given, **known},
    )


def steps(computing: list[float], *, messages: float = 0.0, read: float = 0.001) -> RunTelemetry:
    """Ranks that wait for messages for so long, and for whoever computes longest; seconds."""
    whole = max(computing) + messages + read
    late = computing.index(max(computing))
    told = {}
    for rank, seconds in enumerate(computing):
        waits = whole - seconds - read
        peer = late if rank != late else (late + 1) % len(computing)
        parts = {"forward": 0.3 * seconds, "backward": 0.6 * seconds, "update": 0.1 * seconds, "other": 0.0}
        one = Step(
            0, whole, input_wait=read, exposed=waits, overlapped=0.0,
            transfers=(Transfer("wait", peer, 4 * MIB, waits),), **parts,
        )  # fmt: skip
        told[rank] = tuple(dataclasses.replace(one, step=n, first=n == 1) for n in range(1, 21))
    return RunTelemetry(told)


def judge(telemetry: RunTelemetry, known: RunFacts) -> Verdict:
    found = verdict(telemetry, known)
    assert found is not None
    return found


def tried(found: Verdict) -> list[str]:
    return [setting.words for setting in found.settings]


def test_ranks_that_compute_most_of_the_time_are_well():
    found = judge(steps([1.0, 1.0], messages=0.1), facts())
    assert found.is_well and set(found.gains) == {"compute", "input", "network", "straggler"}
    assert "computing 91%, input 0%, messages 9%, unequal ranks 0%" in found.evidence[0]


def test_waiting_for_messages_is_the_network_and_says_for_whom():
    found = judge(steps([1.0, 1.0], messages=1.5), facts())
    assert (found.bound, found.cause) == ("network", None)
    assert "60% of a step's 2.50 s is waiting for messages of other ranks" in found.summary
    assert "the busiest rank sends 8.0 MiB in 40 messages a step" in found.evidence
    assert "rank 1 @ n1 waits for messages in each step: 1.50 s for rank 0 @ n0, from which 4.0 MiB come" in (
        found.evidence
    )
    assert not any("gradients" in sentence for sentence in found.evidence)


def test_few_bytes_that_are_waited_for_long_are_too_small_steps_also_between_hosts():
    found = judge(steps([1.0, 1.0], messages=1.0), facts(bytes_sent=50_000))
    assert (found.bound, found.cause) == ("network", "small steps")
    assert tried(found)[0] == "train.global_batch=8"
    one_host = dataclasses.replace(facts(), hosts=("n0", "n0"))
    assert judge(steps([1.0, 1.0], messages=1.0), one_host).cause is None


def test_a_rank_to_which_the_plan_gives_more_is_an_uneven_plan():
    found = judge(steps([2.0, 1.0, 1.0, 1.0]), facts(ranks=4, flops=(2.0, 1.0, 1.0, 1.0)))
    assert (found.bound, found.cause) == ("straggler", "uneven")
    # The best that another division can do: all ranks as long as the mean.
    assert found.gain_at_most == pytest.approx((2 - 1.25) / 2.001, abs=1e-3)
    assert "is waiting for rank 0 @ n0, which has more of the network than others" in found.summary
    said = "the plan gives rank 0 @ n0 40% of the arithmetic; of the time in which ranks compute it has 40%"
    assert said in found.evidence
    assert tried(found) == ["train.strategy.parts=[2, 2, 1]", "train.strategy.replicas=2"]


def test_a_rank_that_a_hypergraph_leaves_without_work_is_no_straggler():
    known = facts("{name: hypergraph}", ranks=4, flops=(0.0, 2.0, 0.0, 0.0))
    found = judge(steps([0.01, 2.0, 0.01, 0.01]), known)
    assert (found.bound, found.cause) == ("compute", "idle by plan") and not found.is_well
    assert "on 1 of 4 ranks: the plan leaves rank 0 @ n0 and rank 2 @ n2 and rank 3 @ n3 without work" in (
        found.summary
    )
    assert "train.strategy.replicas=2" in tried(found)
    # Where those that work are uneven, that is what to mend.
    known = dataclasses.replace(known, flops=(0.0, 2.0, 1.0, 0.0))
    assert judge(steps([0.01, 2.0, 1.0, 0.01]), known).cause == "uneven"


def test_a_rank_that_is_slow_although_its_part_is_as_large_as_others_is_a_slow_rank():
    found = judge(steps([1.0, 2.0]), facts())
    assert (found.bound, found.cause) == ("straggler", None)
    assert "is waiting for rank 1 @ n1; fixing it" in found.summary
    assert any("rank 1 @ n1 computes 2.00 s a step" in sentence for sentence in found.evidence)
    assert judge(steps([1.0, 2.0]), facts(flops=())).cause is None


def test_waiting_for_batches_is_the_input():
    assert judge(steps([1.0, 1.0], read=1.0), facts()).bound == "input"


def test_one_rank_alone_waits_for_nobody():
    found = judge(steps([1.0]), facts(ranks=1))
    assert set(found.gains) == {"compute", "input"} and found.is_well


def test_filters_are_shared_by_speed_where_nothing_says_how():
    slow = steps([2.0, 1.0])
    assert tried(judge(slow, facts("{name: filters}"))) == [
        "train.strategy.balance=speed",
        "train.strategy.balance=bandwidth",
    ]
    given = facts("{name: filters, shares: [2, 1], mode: master}")
    assert tried(judge(slow, given)) == [
        "train.strategy.mode=masterless",
        "train.strategy.balance=speed train.strategy.shares=null",
        "train.strategy.balance=bandwidth train.strategy.shares=null",
    ]
    assert tried(judge(slow, facts("{name: filters, balance: speed}"))) == [
        "train.strategy.balance=bandwidth"
    ]


def test_data_parallelism_is_proposed_where_it_would_send_less():
    busy = steps([1.0, 1.0], messages=1.0)
    assert "train.strategy=data" in tried(judge(busy, facts(parameters=1000)))
    assert "train.strategy=data" not in tried(judge(busy, facts(parameters=10**8)))
    assert "train.strategy=data" not in tried(judge(busy, facts(parameters=1000, batch=3)))
    assert tried(judge(busy, facts("{name: filters}"))) == ["train.strategy=spatial"]


def test_where_a_file_divides_the_network_no_rule_is_proposed():
    planned = facts("{name: spatial, plan: p.json}", ranks=4, batch=4)
    for telemetry in (steps([1.0] * 4, messages=1.0), steps([2.0, 1.0, 1.0, 1.0])):
        assert tried(judge(telemetry, planned)) == []


@pytest.mark.parametrize("count, parts", [(1, [1, 1, 1]), (4, [2, 2, 1]), (8, [2, 2, 2]), (7, [7, 1, 1])])
def test_parts_are_as_compact_as_their_number_allows(count, parts):
    assert divided.compact(count) == parts
