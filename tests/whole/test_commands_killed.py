"""kill -9 of the commands that act on jobs: nothing twice, nothing lost, and asking again does the rest.

Programs stand in for Slurm's; tests/cluster has what is killed besides the client, on a real Slurm. At every
line, which takes three quarters of an hour: `python tests/helpers/killed_commands.py FOLDER 0`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HELPERS = Path(__file__).parents[1] / "helpers"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kills", [5, 40])
def test_a_command_killed_at_any_line_has_told_slurm_once_and_is_carried_out_when_asked_again(
    in_memory, kills
) -> None:
    path = os.pathsep.join([str(HELPERS), *filter(None, sys.path)])
    environment = {**{k: v for k, v in os.environ.items() if k != "CINGULUM_STORE"}, "PYTHONPATH": path}
    ran = subprocess.run(
        [sys.executable, HELPERS / "killed_commands.py", in_memory, str(kills)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=3590,
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["wrong"] == []
    assert len(found["killed"]) == 10 and min(found["killed"].values()) >= max(kills, 5)
