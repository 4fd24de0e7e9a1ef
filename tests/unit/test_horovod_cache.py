"""A wheel of Horovod that was built on this machine is found again; nothing is compiled here."""

from __future__ import annotations

import importlib.util
import mmap
import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docker" / "horovod"
NAME = "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"


class Compiled(Exception):
    """A build would have begun."""


def build_of(checkout: Path, monkeypatch):
    """The module build.py of a checkout, whose download ends the test."""
    for name in ("build.py", "changes.py"):
        checkout.mkdir(parents=True, exist_ok=True)
        shutil.copy(FOLDER / name, checkout / name)
    monkeypatch.syspath_prepend(str(checkout))
    monkeypatch.delitem(sys.modules, "changes", raising=False)
    spec = importlib.util.spec_from_file_location(f"build_of_{checkout.name}", checkout / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def fetch(*given):
        raise Compiled

    monkeypatch.setattr(module, "fetch_source", fetch)
    return module


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A home of its own, with no cache named; `put(module)` makes a wheel for this environment there."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("CINGULUM_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")

    def put(module, folder: Path | None = None) -> Path:
        wheel = (folder or module.cache_folder()) / module.build_key(False, "base", "base") / NAME
        wheel.parent.mkdir(parents=True)
        wheel.write_bytes(b"a wheel")
        return wheel

    return put


def test_another_checkout_takes_the_wheel_that_the_first_one_built(tmp_path, machine, monkeypatch):
    wheel = machine(build_of(tmp_path / "first", monkeypatch))
    other = build_of(tmp_path / "somewhere" / "else", monkeypatch)
    monkeypatch.chdir(tmp_path / "somewhere")
    told: list[str] = []
    assert other.obtain(False, told.append) == wheel
    assert told == [f"taken from the cache: {wheel}"]


def test_another_home_of_the_same_user_finds_it_too(tmp_path, machine, monkeypatch):
    """As under sudo, in a batch job or a test that sets HOME or XDG_CACHE_HOME."""
    build = build_of(tmp_path / "checkout", monkeypatch)
    account = tmp_path / "account"
    monkeypatch.setattr(build, "home_of_account", lambda: account)
    wheel = machine(build, account / ".cache" / "cingulum" / "horovod")
    assert build.obtain(False, print) == wheel
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    assert build.obtain(False, print) == wheel
    # A cache that was named is the only one.
    monkeypatch.setenv("CINGULUM_CACHE", str(tmp_path / "named"))
    with pytest.raises(Compiled):
        build.obtain(False, print)


def test_a_wheel_for_another_tensorflow_or_an_empty_one_is_not_taken(tmp_path, machine, monkeypatch):
    build = build_of(tmp_path / "checkout", monkeypatch)
    monkeypatch.setattr(build, "home_of_account", lambda: tmp_path / "home")
    wheel = machine(build)
    monkeypatch.setattr(build, "tensorflow_version", lambda: "tensorflow-99.0")
    with pytest.raises(Compiled):
        build.obtain(False, print)
    monkeypatch.undo()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(build, "home_of_account", lambda: tmp_path / "home")
    monkeypatch.setattr(build, "fetch_source", lambda *given: (_ for _ in ()).throw(Compiled))
    assert build.obtain(False, print) == wheel
    wheel.write_bytes(b"")
    with pytest.raises(Compiled):
        build.obtain(False, print)


def test_a_cache_that_cannot_be_made_is_told_before_anything_is_compiled(tmp_path, machine, monkeypatch):
    build = build_of(tmp_path / "checkout", monkeypatch)
    (tmp_path / "a-file").touch()
    monkeypatch.setenv("CINGULUM_CACHE", str(tmp_path / "a-file"))
    with pytest.raises(build.BuildError, match="CINGULUM_CACHE="):
        build.obtain(False, print)


def test_a_wheel_whose_mpi_was_removed_from_the_system_is_built_again(tmp_path, machine, monkeypatch):
    """Ranks would load another libmpi instead, if there is one, and end in MPI_Init."""
    build = build_of(tmp_path / "checkout", monkeypatch)
    monkeypatch.setattr(build, "home_of_account", lambda: tmp_path / "home")  # a machine's own wheel is fine
    monkeypatch.setattr(build, "mpi_is_package", lambda: False)
    wheel = machine(build)
    linked_with = wheel.parent / build.LINKED_WITH
    removed = tmp_path / "opt" / "openmpi" / "lib"
    removed.mkdir(parents=True)
    linked_with.write_text(f"{removed}\n")
    with pytest.raises(Compiled):
        build.obtain(False, lambda told: None)
    (removed / "libmpi.so.40").touch()
    assert build.obtain(False, lambda told: None) == wheel


@pytest.mark.skipif(
    not (Path(sys.prefix) / "lib" / "libmpi.so").exists(),
    reason="this environment has its Open MPI from elsewhere",
)
def test_the_library_finds_the_open_mpi_of_whichever_environment_it_is_in():
    """It names no checkout; ranks would load the MPI of that one, or the system's once it is gone."""
    (library,) = Path(find_spec("horovod").submodule_search_locations[0]).glob("tensorflow/mpi_lib*.so")
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        assert content.find(b"\0$ORIGIN/../../../..\0") != -1
    assert library.parents[4] == Path(sys.prefix) / "lib"
