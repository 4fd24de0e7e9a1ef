"""A rank that ends because another one left says so in a line; its own faults keep their traceback."""

from __future__ import annotations

import pytest

from trainer.ranks import agreement, starting
from trainer.ranks import world as worlds
from trainer.ranks.world import World

LEFT = RuntimeError(
    "{{function_node __wrapped__HorovodAllreduce}} Horovod has been shut down. This was caused by"
)


class Two(World):
    size = 2

    def __init__(self) -> None:
        super().__init__()
        self.hosts = ("n1", "n2")

    def abort(self, exit_code=1):
        raise SystemExit(exit_code)


@pytest.fixture
def two(monkeypatch):
    monkeypatch.setattr(worlds, "_world", Two())
    return worlds.current()


def in_a_body(two, error):
    def fail():
        raise error

    agreement.together(two, fail)


def in_a_script(two, error):
    starting._end_all_ranks(type(error), error, error.__traceback__)


@pytest.mark.parametrize("where", [in_a_body, in_a_script])
def test_another_ranks_fault_is_one_line_and_an_own_one_a_traceback(two, capsys, where):
    with pytest.raises(SystemExit, match="1"):
        where(two, LEFT)
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.startswith("[rank 0 @ n1] error: another rank left")
    with pytest.raises(SystemExit, match="1"):
        where(two, KeyError("own"))
    assert "KeyError: 'own'" in capsys.readouterr().err.splitlines()[-1]


def test_only_what_horovod_says_of_an_end_is_anothers():
    assert worlds.fault_of_another(ValueError("shapes differ")) is None
