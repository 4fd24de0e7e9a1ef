"""The servers of the strategy `parameter-server`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from trainer.config.section import MAY_CHANGE, Section


class ServerConfig(Section):
    """Who holds the weights and applies the updates; for `train.strategy: parameter-server` only."""

    count: int = Field(
        1,
        ge=1,
        le=1024,
        description="servers; the weights are divided among them by bytes",
        json_schema_extra=MAY_CHANGE,
    )
    placement: Literal["separate", "colocated"] = Field(
        "separate",
        description="separate: the last `count` of the launched processes serve and do nothing else; "
        "colocated: the first `count` ranks serve as well",
        json_schema_extra=MAY_CHANGE,
    )
    mode: Literal["sync", "async"] = Field(
        "sync",
        description="sync: an update waits for the gradients of all workers",
        json_schema_extra=MAY_CHANGE,
    )
    staleness: int | None = Field(
        None,
        ge=0,
        le=10**6,
        description="async: updates that a worker may be ahead of the slowest; default: no bound",
        json_schema_extra=MAY_CHANGE,
    )
    piece_mb: float = Field(
        1.0,
        gt=0,
        le=1024,
        strict=False,
        description="largest message, in MiB; larger variables are cut into pieces",
        json_schema_extra=MAY_CHANGE,
    )

    @model_validator(mode="after")
    def _staleness_is_for_async(self) -> ServerConfig:
        if self.staleness is not None and self.mode != "async":
            raise ValueError("staleness is for mode=async: synchronous workers are never ahead")
        return self
