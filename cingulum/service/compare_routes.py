"""Routes under /api/v1/compare: runs side by side."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response

from cingulum.service.compare_schema import Compared, MetricCurves, Tested
from cingulum.service.comparing import Comparing
from cingulum.service.events import stream
from cingulum.service.schema import Failed

Ids = Annotated[
    str,
    Query(max_length=16384, description="Of runs, jobs or tasks, with commas: a1b2c3d4e5f60718,4711,4712_3."),
]
Split = Annotated[Literal["validation", "test"], Query(description="Subjects that the runs were judged on.")]
_ERRORS: dict[int | str, dict[str, Any]] = {"default": {"model": Failed, "description": "An error"}}


def compare_routes(comparing: Comparing) -> APIRouter:
    """Return the routes that compare runs."""
    router = APIRouter(prefix="/api/v1/compare", tags=["compare"], responses=_ERRORS)

    @router.get("")
    def compare(runs: Ids, split: Split = "test") -> Compared:
        """Return runs side by side: how far and how good they are, and which settings differ."""
        return comparing.table(_listed(runs), split)

    @router.get("/curves")
    def curves(
        runs: Ids,
        metric: Annotated[str, Query(max_length=100)] = "loss",
        axis: Literal["epoch", "step", "time"] = "epoch",
    ) -> MetricCurves:
        """Return the curves of one metric."""
        return comparing.lines(_listed(runs), metric, axis)

    @router.get("/tests")
    def tests(
        runs: Ids,
        split: Split = "test",
        common: Annotated[bool, Query(description="Leave out subjects that not all were judged on.")] = False,
    ) -> Tested:
        """Return whether differences between runs are more than chance, as `cingulum compare` does."""
        return comparing.tests(_listed(runs), split, common=common)

    @router.get("/events", response_class=Response)
    async def events(request: Request, runs: Ids) -> Response:
        """Send a server-sent event whenever one of the runs has changed."""
        return stream(request, lambda: comparing.stamp(_listed(runs)))

    return router


def _listed(runs: str) -> list[str]:
    return [one.strip() for one in runs.split(",") if one.strip()]
