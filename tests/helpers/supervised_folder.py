"""The folder of a job as `cingulum submit` fills it, for scripts that tests render themselves."""

from __future__ import annotations

from pathlib import Path

from jobs.schedulers.slurm import launcher


def fill(folder: Path) -> None:
    """Write what looks after a job into its folder."""
    for name, text in launcher.supervisor_sources().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
