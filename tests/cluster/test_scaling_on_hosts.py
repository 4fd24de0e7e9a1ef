"""`cingulum bench scaling` on emulated hosts, and on the nodes of an allocation of a real Slurm."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.testbed import layout

ROOT = Path(__file__).parents[2]
SMALL = ["--models", "tiny", "--size", "16", "--batch", "2", "--steps", "2", "--repeats", "1"]
ASKED = [sys.executable, "-m", "cingulum", "bench", "scaling", *SMALL, "--scaling", "strong", "--json"]


@pytest.mark.slow
def test_in_an_allocation_ranks_run_on_its_nodes(cluster, tmp_path):
    """Within the batch script; the host that all start from is one of the nodes."""
    script = tmp_path / "study.sh"
    command = [*ASKED, "--ranks", "2", "--hosts", "0,2", "--out", str(tmp_path / "study")]
    script.write_text(f"#!/bin/sh\nexec {' '.join(command)} >{tmp_path}/rows.json 2>{tmp_path}/log\n")
    environment = {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    wanted = ["sbatch", "--wait", "--nodes=2", "--ntasks-per-node=1", "--output=/dev/null", str(script)]
    ran = cluster.exec("ctl", wanted, timeout=240, environment=environment, cwd=tmp_path)
    assert ran.returncode == 0, (ran.stderr, (tmp_path / "log").read_text())
    here, spread = json.loads((tmp_path / "rows.json").read_text())
    assert (here["error"], spread["error"]) == (None, None)
    assert (here["cell"]["hosts"], spread["cell"]["hosts"]) == (0, 2)
    assert not spread["cell"]["emulated"]
    assert (here["facts"]["hosts"], spread["facts"]["hosts"]) == (1, 2)


def test_on_emulated_hosts_bytes_are_counted_and_nothing_stays(cluster_machine, tmp_path):
    before = set(layout.names())
    command = [*ASKED, "--ranks", "2", "--hosts", "2", "--bandwidth", "200mbit", "--out", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    (row,) = json.loads(ran.stdout)
    assert row["error"] is None and row["cell"]["emulated"]
    assert set(row["interfaces"]) == {"n1", "n2"}
    assert all(host["sent"] > 0 and host["received"] > 0 for host in row["interfaces"].values())
    assert "hosts share" in ran.stderr and "Emulated hosts" in (tmp_path / "scaling.html").read_text()
    assert not [name for name in set(layout.names()) - before if name.startswith("scaling-")]
