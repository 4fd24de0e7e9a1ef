"""Profiles of sites, from their text."""

from __future__ import annotations

import tempfile
from pathlib import Path

from jobs.schedulers import site_profiles
from jobs.sites import Site


def site_of(text: str) -> Site:
    """The site of a file x.yaml with this text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.yaml"
        path.write_text(text)
        return site_profiles.load(str(path))
