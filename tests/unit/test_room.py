"""What does not fit into the memory of a rank is refused before the first step; what may not fit is told."""

from __future__ import annotations

import pytest
import tensorflow as tf
from wording import fails_with

from trainer import dry_run
from trainer.errors import CingulumError
from trainer.planning.placement.memory import Memory
from trainer.ranks.agreement import Agreed
from trainer.ranks.world import World
from trainer.runs import room

MIB = 2**20
# Parameters, slots, kept activations, the most of a step.
NEEDED = (Memory(10 * MIB, 20 * MIB, 100 * MIB, 150 * MIB),)


class Planned:
    """A plan, as far as `naming_shortage` looks at it."""

    def __init__(self, needed):
        self._needed = needed

    def memory(self):
        return self._needed


def checked(monkeypatch, left, whole=()):
    """Returns the warnings."""
    said = []
    monkeypatch.setattr(room, "shared_bytes", lambda: {"host": left})
    monkeypatch.setattr(room, "own_bytes", lambda: None)
    monkeypatch.setattr(room.worlds, "report", said.append)
    room.check(NEEDED, whole, World())
    return said


class Three(World):
    """Rank 0 of three, of which the first two are on one host."""

    size = 3
    hosts = ("n0", "n0", "n1")

    def __init__(self, *others) -> None:
        self._others = others

    def allgather_object(self, value):
        return [None] * 3 if value is None else [value, *self._others]


def together(monkeypatch, mine, second, third, alone=None):
    """Returns the warnings of rank 0 where ranks may have so much, by name."""
    said = []
    monkeypatch.setattr(room, "shared_bytes", lambda: mine)
    monkeypatch.setattr(room, "own_bytes", lambda: alone)
    monkeypatch.setattr(room.worlds, "report", said.append)
    room.check(NEEDED * 3, (), Three(second, third))
    return said


def test_what_does_not_fit_is_refused_with_what_it_needs(monkeypatch):
    needs = r"(?s)needs 130\.0 MiB at least \(30\.0 MiB.*100\.0 MiB.*can have 129\.0 MiB more"
    with pytest.raises(Agreed, match=needs) as told:
        checked(monkeypatch, 129 * MIB)
    assert "more ranks" in told.value.error.cure and told.value.error.exit_code == 2


def test_what_may_not_fit_is_told(monkeypatch):
    warning = "warning: rank 0 needs about 180.0 MiB in a step, and can have 131.0 MiB more."
    assert checked(monkeypatch, 131 * MIB) == [warning]
    assert checked(monkeypatch, 180 * MIB) == []


def test_the_whole_network_s_weights_make_room_when_they_are_let_go(monkeypatch):
    weights = [tf.Variable(tf.zeros((MIB, 8)))]  # 32 MiB
    assert checked(monkeypatch, 99 * MIB, weights)
    with pytest.raises(Agreed):
        checked(monkeypatch, 97 * MIB, weights)


def test_what_is_not_predicted_is_not_refused(monkeypatch):
    monkeypatch.setattr(room, "shared_bytes", lambda: {"host": 0})
    room.check(None, (), World())


def test_ranks_of_one_host_must_fit_into_its_memory_together(monkeypatch):
    host = [{"host": size * MIB} for size in (400, 260, 131)]
    # Of rank 2, which has a host of its own, another process tells.
    warning = (
        "warning: ranks 0, 1 on n0 need about 360.0 MiB in a step, and can have 260.0 MiB more together."
    )
    assert together(monkeypatch, *host) == [warning]
    host[1]["host"] -= MIB
    needs = r"Ranks 0, 1 of 3 on n0 need 260\.0 MiB at least \(60\.0 MiB.*200\.0 MiB.*can have 259\.0 MiB"
    with pytest.raises(Agreed, match=needs) as told:
        together(monkeypatch, *host)
    assert "over more hosts" in told.value.error.cure


def test_what_only_one_rank_may_use_counts_for_it_alone(monkeypatch):
    host = {"host": 400 * MIB}
    groups = [{**host, name: 190 * MIB} for name in ("group of 7", "group of 8")]
    assert together(monkeypatch, *groups, host, alone=190 * MIB) == []
    with fails_with(Agreed):
        together(monkeypatch, groups[0], groups[0], host)
    with fails_with(Agreed):
        together(monkeypatch, *groups, host, alone=129 * MIB)


@pytest.mark.parametrize(
    "needed, said", [(NEEDED, "predicted to need about 180.0 MiB"), (None, "training step.")]
)
def test_a_step_that_gets_no_memory_says_what_was_predicted(needed, said):
    with (
        pytest.raises(CingulumError, match=said) as told,
        room.naming_shortage(Planned(needed), World()),
    ):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating")
    assert "more ranks" in told.value.cure


def test_a_dry_run_shows_what_each_rank_needs():
    shown = {"weights": [10 * MIB], "optimizer": [20 * MIB], "activations": [100 * MIB], "most": [180 * MIB]}
    assert dry_run._of_ranks(Planned(NEEDED)) == shown
    assert dry_run._of_ranks(Planned(None)) == {}
