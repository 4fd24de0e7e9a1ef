"""docs/clusters.md from top to bottom, as a newcomer types it on the login node of a small cluster."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
import tiny_runs

from jobs.testbed import Testbed

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "clusters.md"
MARK = re.compile(
    r"<!-- not run: run by tests/cluster/test_clusters_page\.py[^>]*-->\n```sh\n(.*?)^```$", re.M | re.S
)


@pytest.fixture
def login(cluster: Testbed, tmp_path: Path):
    """A shell on the login node, in a folder that all hosts see, with `cingulum` on the PATH."""
    study = tmp_path / "study"
    study.mkdir()
    (study / "slurm").symlink_to(ROOT / "slurm")
    shards = tiny_runs.make_shards(study / "shards")
    tiny_runs.write_config(study, shards, "my-run", train__epochs=1)
    environment = {
        "HOME": str(tmp_path / "home"),
        "XDG_CONFIG_HOME": "",
        "CINGULUM_HOME": str(tmp_path / "cingulum"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    (tmp_path / "home").mkdir()

    def run(line: str) -> str:
        done = cluster.exec("ctl", ["bash", "-euc", line], cwd=study, environment=environment, timeout=240)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_commands_of_the_page_lead_to_a_run_on_two_hosts(login, tmp_path):
    commands = [line for block in MARK.findall(PAGE.read_text()) for line in block.splitlines()]
    assert len(commands) > 10
    job, said = "", {}
    for line in commands:
        said[line] = login(line.replace("4711", job))
        if line.startswith("cingulum submit") and "--dry-run" not in line:
            job = re.findall(r"\b\d+\b", said[line])[0]
    dry = next(text for line, text in said.items() if "--dry-run" in line)
    assert "#SBATCH --gres=gpu:1" in dry and "#SBATCH --partition=all" in dry
    assert "OMPI_MCA_btl_tcp_if_include=eth0" in dry
    shown = next(text for line, text in said.items() if line.startswith("cingulum show"))
    assert "my-run" in shown
    assert (tmp_path / "study" / "my-run" / "result.json").exists()
    array = next(text for line, text in said.items() if "--folds 3" in line)
    assert "#SBATCH --array=0-5%3" in array
