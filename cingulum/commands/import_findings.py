"""Findings on images, for the terminal: one line for each kind, however many images have it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from trainer.data.sources.file_names import first_three

if TYPE_CHECKING:
    from trainer.data.images.findings import Finding


class Findings:
    """Findings by kind, in the order of their first appearance."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str], list[tuple[str, str]]] = {}

    def add(self, source: str, findings: Sequence[Finding]) -> None:
        """Add a finding about an image; notes are not shown."""
        for finding in findings:
            if finding.severity != "note":
                kind = (finding.severity, finding.code)
                self._kinds.setdefault(kind, []).append((source, finding.message))

    def lines(self, *severities: str) -> Iterator[tuple[str, str]]:
        """Return (severity, line): the count and the first three names; the message is that of the first
        image.
        """
        for (severity, code), found in self._kinds.items():
            if severity not in severities:
                continue
            source, message = found[0]
            if len(found) == 1:
                yield severity, f"{severity}: {source}: {message}"
            else:
                names = first_three(name for name, _ in found)
                alike = "" if len({said for _, said in found}) == 1 else "the first "
                yield severity, f"{severity}: {code}, {len(found)} images ({names}): {alike}{message}"
