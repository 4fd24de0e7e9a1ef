"""The command line of an mpirun launch."""

from __future__ import annotations

import pytest

from jobs.launchers import mpirun
from trainer.errors import WorldError

ARGV = ["python", "train.py"]


@pytest.fixture(autouse=True)
def _an_mpirun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpirun, "find", lambda: "mpirun")


def test_the_line_ends_with_the_program_and_its_arguments() -> None:
    line, _ = mpirun.command(2, ARGV, cores=4, root=False)
    assert line == ["mpirun", "-np", "2", "--bind-to", "none", *ARGV]


def test_only_root_confirms_that_it_is_root() -> None:
    assert mpirun.command(2, ARGV, root=False)[1] == {}
    assert set(mpirun.command(2, ARGV, root=True)[1]) == {
        "OMPI_ALLOW_RUN_AS_ROOT",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
    }


def test_more_ranks_than_cores_are_asked_for_in_words() -> None:
    assert "--oversubscribe" in mpirun.command(3, ARGV, cores=2)[0]
    assert "--oversubscribe" not in mpirun.command(2, ARGV, cores=2)[0]


def test_hosts_are_named_with_their_slots_and_get_our_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "2")
    line, _ = mpirun.command(3, ARGV, hosts={"a": 2, "b": 1})
    assert line[line.index("--host") + 1] == "a:2,b:1"
    assert line[line.index("HOROVOD_CYCLE_TIME") - 1] == "-x"


def test_hosts_without_room_are_refused() -> None:
    with pytest.raises(WorldError, match="4 ranks do not fit on hosts with room for 3"):
        mpirun.command(4, ARGV, hosts={"a": 2, "b": 1})


def test_no_rank_at_all_is_refused() -> None:
    with pytest.raises(WorldError, match="0 ranks"):
        mpirun.command(0, ARGV)
