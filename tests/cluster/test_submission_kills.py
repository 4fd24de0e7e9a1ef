"""Submitters killed on a real Slurm: afterwards the store and the queue agree."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_submitter_killed_at_any_point_loses_no_job_and_submits_none_twice(cluster, tmp_path) -> None:
    """Among others while sbatch is at work, which then goes on by itself."""
    helpers = ROOT / "tests" / "helpers"
    ran = cluster.exec(
        "ctl",
        [sys.executable, str(helpers / "killed_slurm_submissions.py"), str(tmp_path)],
        cwd=tmp_path,
        timeout=890,
        environment={"PYTHONPATH": os.pathsep.join([str(ROOT), str(helpers)])},
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["wrong"] == []
    assert any("subprocess.py" in where for where in found["killed_at"])
    assert found["lost"] > 5
    assert found["adopted"] > 5
    assert len(found["killed_at"]) > 20
