"""What tests of several files need."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from pretended_slurm import Pretended

from jobs.schedulers import registry


@pytest.fixture
def slurm(monkeypatch, tmp_path) -> Pretended:
    """A launcher that does as it is told, and a folder with `mine.yaml` and a shard set to submit from."""
    launcher = Pretended()
    monkeypatch.setattr(registry, "named", lambda name: launcher)
    monkeypatch.setenv("CINGULUM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.delenv("CINGULUM_STORE", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "index.json").write_text("{}")
    (tmp_path / "mine.yaml").write_text(
        yaml.safe_dump({"name": "mine", "data": {"shards": "shards"}, "train": {"global_batch": 12}})
    )
    return launcher


@pytest.fixture
def in_memory(tmp_path) -> Iterator[Path]:
    """A folder in memory where there is one: who is killed loses nothing that only a power cut would."""
    memory = Path("/dev/shm")  # noqa: S108
    folder = Path(tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else tmp_path))
    yield folder
    shutil.rmtree(folder)
