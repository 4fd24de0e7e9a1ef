"""All ranks divide a network by the same file, or none does."""

from __future__ import annotations

import json

import pytest
from planned_networks import small
from wording import fails_with

from trainer.errors import ConfigError
from trainer.planning.placement import ways
from trainer.planning.placement.plan_file import PlanFile
from trainer.planning.placement.units import place
from trainer.ranks.agreement import Agreed
from trainer.ranks.world import World
from trainer.strategies.placed import strategy

NETWORK = small()
PLAN = PlanFile.of(
    place(NETWORK, ways.spatial(NETWORK, (2,), range(2))), name="small", strategy="spatial", ranks=2
)


class Others(World):
    """Rank 0 of several on hosts of their own; the others read what the test wants."""

    def __init__(self, *read: str) -> None:
        self.size, self.host = 1 + len(read), "n0"
        self.hosts = tuple(f"n{number}" for number in range(self.size))
        self._read = read

    def allgather_object(self, value):
        if value is None:  # whether reading failed
            return [None] * self.size
        return [value, *self._read]


@pytest.fixture
def path(tmp_path):
    # Laid out as people may do it: what it says counts.
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(json.loads(PLAN.text())))
    return file


def test_the_same_plan_on_all_hosts_is_followed(path):
    strategy.check_same_plan(Others(PLAN.sha256, PLAN.sha256), path)


def test_ranks_that_read_another_plan_are_named_with_their_hosts(path):
    with pytest.raises(Agreed) as caught:
        strategy.check_same_plan(Others(PLAN.sha256, "1" * 64, "2" * 64), path)
    error, mine = caught.value.error, PLAN.sha256[:12]
    assert type(error) is ConfigError and error.key == "train.strategy.plan"
    assert error.message == (
        f"{path}: is not the same plan on all ranks (SHA-256): rank 0 @ n0 reads {mine}, "
        "rank 2 @ n2 reads 111111111111, rank 3 @ n3 reads 222222222222."
    )


def test_of_many_that_differ_the_first_are_named(path):
    with fails_with(Agreed):
        strategy.check_same_plan(Others(*["1" * 64] * 5), path)


def test_a_file_that_a_host_lacks_is_refused(tmp_path):
    with fails_with(Agreed):
        strategy.check_same_plan(World(), tmp_path / "plan.json")
