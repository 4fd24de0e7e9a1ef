"""Bringing a testbed back to how it was, with a Slurm that only a script speaks for."""

from __future__ import annotations

from jobs.testbed import Testbed, links, slurm_daemons
from jobs.testbed.layout import Settings
from trainer.errors import LauncherError


def test_a_host_that_comes_back_by_itself_meanwhile_is_no_error(tmp_path, monkeypatch):
    seen = iter([{"n1": "down", "n2": "idle"}, {"n1": "idle", "n2": "idle"}])
    refused = []

    def client(folder, command):
        if command[0] == "scontrol":
            refused.append(command)
            raise LauncherError("slurm_update error: Invalid node state specified")
        return ""

    for module, name, value in [
        (slurm_daemons, "node_states", lambda folder: next(seen)),
        (slurm_daemons, "client", client),
        (slurm_daemons, "runs", lambda *_: True),
        (slurm_daemons, "start_slurmd", lambda *_: None),
        (links, "ports", lambda folder: {}),
        (Testbed, "is_up", lambda *_: True),
        (Testbed, "shape", lambda *_: None),
        (Testbed, "set_delay", lambda *_: None),
    ]:
        monkeypatch.setattr(module, name, value)
    Testbed(Settings(name="made-up", hosts=2), tmp_path).settle()
    assert len(refused) == 1
