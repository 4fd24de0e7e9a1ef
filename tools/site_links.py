"""A hook of MkDocs: what pages link to outside of docs/ is not on the site; its path is shown instead."""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\.?/[^)#\s]*)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """Return a page whose links to files outside of docs/ are words and a path of the repository."""
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def shown(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, match[2]))
        if path.startswith("docs/"):
            return match[0]
        words = match[1].strip("`")
        return f"`{path}`" if words in path else f"{match[1]} (`{path}`)"

    return _LINK.sub(shown, markdown)
