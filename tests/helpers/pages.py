"""The pages of the documentation: which there are, and what is in them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "CONTRIBUTING.md"]
FENCE = re.compile(
    r"(?:<!-- not run: (?P<why>[^>]+) -->\n+)?```(?P<language>\w*)\n(?P<body>.*?)^```$", re.M | re.S
)
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
