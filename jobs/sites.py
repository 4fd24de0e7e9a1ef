"""A site profile: what differs between clusters, written once in YAML."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Site(BaseModel):
    """One cluster, or this machine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = "here"


HERE = Site()
