"""What every part of the configuration has in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A part of the configuration; immutable, unknown keys refused, types not bent."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
