"""The one script of report pages, and how a browser is told that it alone may run."""

from __future__ import annotations

import base64
import functools
import hashlib
from pathlib import Path


@functools.cache
def source() -> str:
    """Return the source of a policy (Content Security Policy 3, section 2.3.1) that allows this script alone.

    It is the hash of what stands between the tags in `base.html.j2`: whatever else a page holds as a script,
    inline or in an attribute, does not have it.
    """
    text = "\n" + (Path(__file__).parent / "templates" / "report.js").read_text(encoding="utf-8")
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
