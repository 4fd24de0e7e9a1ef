"""Profiles of sites, from their text."""

from __future__ import annotations

import tempfile
from pathlib import Path

from jobs import sites
from jobs.sites import Site


def site_of(text: str) -> Site:
    """The site of a file x.yaml with this text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.yaml"
        path.write_text(text)
        return sites.load(str(path))
