"""Tests on emulated hosts with a real Slurm cluster.

They mostly wait, so that four processes of pytest run them on two cores, each with a cluster of its own.

`cluster` is up for the whole session: hosts n1, n2, n3 and the controller's host ctl. After each test that
asks for it, it is brought back to idle nodes and an empty queue. Hosts see this checkout, its environment and
pytest's temporary folders. `apptainer_user` has the one image that all tests of Apptainer share.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import apptainer_image
import pytest
from xdist.scheduler import LoadScopeScheduling

from jobs.testbed import Testbed, programs
from trainer.errors import LauncherError

ROOT = Path(__file__).parents[2]

# Tests that one process runs one after the other, because they share what takes long to make, by the
# beginning of their names.
TOGETHER = {
    "test_apptainer": "the image of Apptainer",
    "test_docker": "the Docker daemon and its images",
    "test_preemption.py::test_a_preempted_job": "the run that nothing interrupted",
    "test_testbed.py::test_accounting": "a cluster with accounting",
    "test_testbed.py::test_the_controllers_host": "a cluster with accounting",
    "test_submit_slurm.py::test_jobs_that_left": "a cluster with accounting",
    "test_service_on_slurm.py::test_the_page_of_the_cluster": "a cluster with accounting",
    "test_testbed.py": "short tests",
    "test_testbed_page": "short tests",
    "test_rendered_scripts.py::test_slurm_takes": "short tests",
    "test_store_postgresql": "a PostgreSQL",
    "test_shared_with_groups": "services of several users",
}


class ByWhatIsShared(LoadScopeScheduling):
    """Gives each process of pytest-xdist one test at a time, or all that share something (`TOGETHER`)."""

    def _split_scope(self, nodeid: str) -> str:
        file, _, test = nodeid.partition("::")  # a parameter may hold a slash, too
        name = f"{Path(file).name}::{test}"
        shared = (what for start, what in TOGETHER.items() if name.startswith(start))
        return next(shared, nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByWhatIsShared:
    config.option.loadscopereorder = False  # the order below
    return ByWhatIsShared(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long begins first, images before all, so that no process is left with it at the end."""

    def begins(item: pytest.Item) -> int:
        if item.path.name.startswith(("test_docker", "test_apptainer")):
            return 0
        return 1 if item.get_closest_marker("slow") else 2

    here = [item for item in items if item.path.parent == Path(__file__).parent]
    items[:] = [item for item in items if item not in here] + sorted(here, key=begins)


@pytest.fixture(scope="session")
def cluster_machine() -> None:
    """Skip where no testbed can be had; fail there where the gate has seen to it that one can."""
    try:
        programs.check(slurm=True, accounting=True, delay=True)
    except LauncherError as error:
        if os.environ.get("CINGULUM_REQUIRE_CLUSTER") == "1":
            pytest.fail(f"a testbed is required here: {error}")
        pytest.skip(f"no testbed here: {error}")


def bring_up(tmp_path_factory: pytest.TempPathFactory, name: str, *, accounting: bool) -> Testbed:
    """Hosts that see what tests need, and end with pytest whatever happens."""
    shared = [tmp_path_factory.getbasetemp(), ROOT, Path(sys.prefix), Path(sys.base_prefix)]
    name = f"{name}-{os.getpid()}"
    return Testbed.up(3, gpus=2, accounting=accounting, shared=shared, name=name, tied=True)


@pytest.fixture(scope="session")
def cluster(cluster_machine, tmp_path_factory) -> Iterator[Testbed]:
    """Three hosts with Slurm, without accounting (no sacct); each has 2 CPUs and 2 pretended GPUs."""
    testbed = bring_up(tmp_path_factory, "test", accounting=False)
    yield testbed
    testbed.down()


@pytest.fixture(scope="session")
def cluster_with_accounting(cluster_machine, tmp_path_factory) -> Iterator[Testbed]:
    """As `cluster`, with slurmdbd, for tests of what sacct tells; starts 3 s later."""
    testbed = bring_up(tmp_path_factory, "test-acct", accounting=True)
    yield testbed
    testbed.down()


@pytest.fixture(scope="session")
def apptainer_user() -> Iterator[apptainer_image.User]:
    """A user with an image; hosts of a testbed may read it where they share his folder."""
    if why := apptainer_image.missing():
        if os.environ.get("CINGULUM_REQUIRE_APPTAINER") == "1":
            pytest.fail(f"Apptainer is required here: {why}")
        pytest.skip(f"no Apptainer here: {why}")
    with apptainer_image.user() as made:
        apptainer_image.build(made)
        yield made


@pytest.fixture(autouse=True)
def _left_idle(request) -> Iterator[None]:
    """The next test finds every cluster that this one used as if it were new."""
    yield
    for name in {"cluster", "cluster_with_accounting"} & set(request.fixturenames):
        # A host that lost its power is idle a minute later where other tests keep the cores busy.
        request.getfixturevalue(name).settle(seconds=180)
