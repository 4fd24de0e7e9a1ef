"""Options of a site's profile under the scheduler of contrib/gridengine, which the product does not know."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.sites import Site
from jobs.spec import JobSpec
from trainer.errors import JobError

ROOT = Path(__file__).parents[2]


def directives(monkeypatch: pytest.MonkeyPatch, *options: str) -> list[str]:
    monkeypatch.syspath_prepend(str(ROOT / "contrib" / "gridengine"))
    from cingulum_gridengine.launcher import GridEngine

    spec = JobSpec("mine", "train", (("cingulum", "train", "run.yaml"),), "/data")
    launch = GridEngine().plan(spec, Site(options=options), Path("/jobs/x"), "0" * 16)
    text = launch.files["job.sh"]
    return [line.removeprefix("#$ ") for line in text.splitlines() if line.startswith("#$ ")]


def test_all_of_them_are_given_also_several_of_one_name_and_those_that_slurm_keeps(monkeypatch):
    found = directives(monkeypatch, "--pe=mpi", "--l=gpu=1", "--l=mem_free=4G", "--p=-5", "--P=brains")
    assert found[-4:] == ["-l gpu=1", "-l mem_free=4G", "-p -5", "-P brains"]
    assert "-pe mpi 1" in found


@pytest.mark.parametrize("option", ["--o=/tmp/x", "--terse", "--ac=cingulum=1"])
def test_what_the_script_sets_itself_is_refused(monkeypatch, option):
    with pytest.raises(JobError, match=f"options: -{option[2:].partition('=')[0]} is set by the script"):
        directives(monkeypatch, option)
