"""What a run writes down about its time and its machines."""

from __future__ import annotations

from pydantic import Field

from trainer.config.section import MAY_CHANGE, Section


class TelemetryConfig(Section):
    """Where a run's time goes, told in `telemetry/` of the run folder."""

    enabled: bool = Field(
        True, description="time the parts of each step, and watch the hosts", json_schema_extra=MAY_CHANGE
    )
    trace: bool = Field(
        False,
        description="write also `telemetry/trace.json`, for chrome://tracing or ui.perfetto.dev",
        json_schema_extra=MAY_CHANGE,
    )
