"""What holds for all tests."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import wording
import yaml
from hypothesis import settings

from trainer import processor

# Before a file of tests imports TensorFlow, also where none of ours comes first.
processor.prepare_tensorflow()

# A shell's background job, as a CI may be, ignores Ctrl-C, and so would every program that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test is about its own time: on a busy machine an example may take long.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# Files of tests import what lives to the end, TensorFlow too: nothing to look through for garbage.
gc.disable()

TESTS = Path(__file__).parent
# By folder/name of a file, the beginnings of names of tests.
GATE: dict[str, tuple[str, ...]] = {
    file: ("",) if names == "all" else tuple(names)
    for files in yaml.safe_load((TESTS / "gate.yaml").read_text()).values()
    for file, names in files.items()
}

_died = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    said = "write what errors say into tests/wording.json instead of comparing it"
    parser.addoption("--renew-wording", action="store_true", help=said)


def pytest_configure(config: pytest.Config) -> None:
    wording.renewing = config.getoption("renew_wording")


@pytest.hookimpl(tryfirst=True)  # a folder may have an order of its own
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what gate.yaml leaves out; begin with files of `slow` tests, or one core waits for the other."""
    for item in items:
        folder, name = item.path.parent.name, item.path.stem.removeprefix("test_")
        chosen = GATE.get(f"{folder}/{name}", ())
        if folder != "unit" and not item.name.removeprefix("test_").startswith(chosen):
            item.add_marker("deep")
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object | None) -> None:
    """Note that a process of pytest-xdist died, such as for want of memory."""
    if error is not None:
        node.config.stash[_died] = True


@pytest.fixture(autouse=True)
def _words_of_this_try() -> None:
    wording.met.pop(os.environ["PYTEST_CURRENT_TEST"].rpartition(" (")[0], None)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """pytest-xdist then leaves out the rest, and says 1 as if every test had been run."""
    if wording.renewing and wording.met:
        wording.write()
    if session.config.stash.get(_died, False):
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
