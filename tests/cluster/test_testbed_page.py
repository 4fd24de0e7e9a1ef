"""The commands of docs/how-to/testbed.md run, in their order, as a reader would run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.testbed import layout

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "testbed.md"
OURS = re.compile(
    rf"<!-- not run: {Path(__file__).relative_to(ROOT)}[^>]*-->\n```sh\n(.*?)^```$", re.M | re.S
)


def test_the_commands_of_the_page_run(cluster_machine, tmp_path):
    commands = "".join(OURS.findall(PAGE.read_text()))
    assert commands.count("cingulum testbed") > 12
    name = f"page-{os.getpid()}"
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "CINGULUM_TESTBED_NAME": name,
    }
    try:
        ran = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert ran.returncode == 0, f"{ran.stdout[-3000:]}\n{ran.stderr[-3000:]}"
        assert not (layout.BASE / name).exists()
    finally:
        subprocess.run(
            [sys.executable, "-m", "cingulum", "testbed", "down", "--name", name], timeout=60, check=True
        )
    written = next(tmp_path.glob("slurm-*.out")).read_text()
    assert set(written.split()) == {"n1", "n2", "n3"}


@pytest.mark.parametrize("command", ["up", "status", "exec", "shape", "link", "kill", "boot", "down"])
def test_the_page_shows_every_command(command):
    assert f"cingulum testbed {command}" in PAGE.read_text()
