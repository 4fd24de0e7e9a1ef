"""A finished run's network as files that other programs open, and a card that says what it is."""

from __future__ import annotations

from trainer.export.exporting import FORMATS, export

__all__ = ["FORMATS", "export"]
