"""What is changed in Horovod's source before it is compiled."""

import importlib.util
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "docker" / "horovod" / "changes.py"


@pytest.fixture(scope="module")
def changes():
    import sys

    spec = importlib.util.spec_from_file_location("horovod_changes", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_a_change_takes_the_place_of_the_text_that_it_names(changes, tmp_path):
    (tmp_path / "a.cc").write_text("before\nold\nafter\n")
    changes.apply(
        tmp_path, [changes.Change("a.cc", "old\n", "new\n"), changes.Change("a.cc", "new", "newer")]
    )
    assert (tmp_path / "a.cc").read_text() == "before\nnewer\nafter\n"


@pytest.mark.parametrize("text", ["nothing of it", "old and old"])
def test_another_source_is_refused_by_the_name_of_the_file(changes, tmp_path, text):
    (tmp_path / "a.cc").write_text(text)
    with pytest.raises(changes.ChangeError, match=r"a\.cc: the lines to change are gone"):
        changes.apply(tmp_path, [changes.Change("a.cc", "old", "new")])
    assert (tmp_path / "a.cc").read_text() == text
