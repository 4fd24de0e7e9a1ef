"""Errors that all ranks learn of together."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from wording import fails_with

from trainer.data.images.findings import bad
from trainer.errors import CingulumError, ConfigError, ImageError, ShardError, Stopped
from trainer.ranks.agreement import Agreed, agree, together
from trainer.ranks.world import World


class OfThree(World):
    """Rank 0 of three, the others of which say what the test wants."""

    size = 3
    hosts = ("one", "two", "three")

    def __init__(self, *others) -> None:
        self.others = others
        self.aborted: int | None = None
        self.host = "one"

    def allgather_object(self, value):
        return [value, *self.others]

    def abort(self, exit_code=1):
        self.aborted = exit_code
        raise SystemExit(exit_code)


def fail(error: Exception):
    def action():
        raise error

    return action


def test_what_succeeds_everywhere_returns():
    assert agree(OfThree(None, None), lambda: 3) == 3


def test_another_ranks_error_is_raised_here_too_and_names_the_rank():
    with pytest.raises(Agreed) as caught:
        agree(OfThree(None, ["ShardError", "it is damaged", "mend it", {}]), lambda: 3)
    assert type(caught.value.error) is ShardError
    assert str(caught.value.error) == "[rank 2 @ three] it is damaged\n  mend it"


def test_an_error_of_all_ranks_names_none():
    with pytest.raises(Agreed) as caught:
        agree(
            OfThree(["ConfigError", "wrong", None], ["ConfigError", "wrong", None]),
            fail(ConfigError("wrong")),
        )
    assert caught.value.error.message == "wrong" and type(caught.value.error) is ConfigError


def test_a_full_disk_becomes_an_error_that_names_the_file():
    with pytest.raises(Agreed) as caught:
        agree(World(), fail(OSError(errno.ENOSPC, "No space left on device", "/runs/x")))
    said = caught.value.error.message
    assert said.startswith("/runs/x: no space is left on its disk: ") and said.endswith(" are free.")


@pytest.mark.parametrize("kind", [errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.EISDIR, errno.EEXIST])
def test_a_path_that_cannot_be_used_is_bad_input(kind):
    with pytest.raises(Agreed) as caught:
        agree(World(), fail(OSError(kind, "No", "/proc/x")))
    assert caught.value.error.exit_code == 2
    assert str(caught.value.error).startswith("/proc/x: No.\n  Give another path")


def test_an_error_of_a_derived_class_arrives_as_its_kind():
    from trainer.data.images.findings import ImageFault

    with pytest.raises(Agreed) as caught:
        agree(World(), fail(ImageFault(Path("a.nii"), bad("empty", "is empty.", "Get it again."))))
    assert type(caught.value.error) is ImageError


def test_a_fault_of_ours_is_not_dressed_up():
    with pytest.raises(KeyError):
        agree(World(), fail(KeyError("x")))


def test_an_agreed_error_is_told_once_and_gives_its_exit_code(capsys):
    assert together(World(), fail(Agreed(ConfigError("wrong", cure="mend")))) == 2
    assert capsys.readouterr().err == "error: wrong\n  mend\n"


def test_being_stopped_is_news_and_no_error(capsys, monkeypatch):
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE", raising=False)
    assert together(World(), fail(Agreed(Stopped("saved")))) == 75
    assert capsys.readouterr().err == "saved\n"
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    assert together(World(), fail(Agreed(Stopped("saved", cure="go on")))) == 75
    first, of_mpirun, last = capsys.readouterr().err.splitlines()
    assert (first, last) == ("saved", "  go on") and "nothing is lost" in of_mpirun


@pytest.mark.parametrize(("error", "exit_code"), [(ShardError("damaged"), 2), (KeyError("x"), 1)])
def test_an_error_of_one_rank_alone_ends_the_world_with_its_message_first(
    capsys, monkeypatch, error, exit_code
):
    world = OfThree()
    monkeypatch.setattr("trainer.ranks.world._world", world)
    with pytest.raises(SystemExit):
        together(world, fail(error))
    assert world.aborted == exit_code
    assert capsys.readouterr().err.startswith("[rank 0 @ one] ")


def test_alone_an_error_goes_its_usual_way():
    with fails_with(CingulumError):
        together(World(), fail(ShardError("damaged")))
