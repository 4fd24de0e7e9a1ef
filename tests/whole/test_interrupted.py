"""Ctrl-C on one process saves, as it does under mpirun, and tells the command that goes on."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import tiny_runs

from trainer.run_folder import checkpoint


def test_ctrl_c_saves_the_step_and_tells_the_command_that_goes_on(tmp_path):
    shards = tiny_runs.make_shards(tmp_path / "shards")
    changes = {"train__epochs": 5000, "checkpoint__every_steps": None, "checkpoint__keep": 1}
    config = tiny_runs.write_config(tmp_path, shards, "my", **changes)
    folder = tmp_path / "my"
    environment = {k: v for k, v in os.environ.items() if not re.match(r"(OMPI|PMIX|SLURM)_", k)}
    with subprocess.Popen(
        [sys.executable, "-m", "cingulum", "train", str(config)],
        env={**environment, "PYTHONPATH": str(Path(__file__).parents[2])},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        deadline = time.monotonic() + 90
        while not tiny_runs.steps(folder) and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 75, errors
    saved = max(tiny_runs.steps(folder))
    assert checkpoint.check(checkpoint.path_of(folder / "checkpoints", saved)) is None
    assert "stopping; the state is saved first (Ctrl-C again ends at once)" in errors
    assert f"stopped at step {saved} of 30000, as asked; the state is saved." in errors
    command = shlex.join(["cingulum", "train", str(folder / "config.yaml"), "--resume"])
    assert f"  Go on with: {command}\n" in errors
