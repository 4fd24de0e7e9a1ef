"""Routes under /api/v1/cluster: queue and hosts."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from cingulum.service.cluster_now import ClusterNow
from cingulum.service.cluster_schema import ClusterTold
from cingulum.service.events import stream
from cingulum.service.schema import Failed

_ERRORS: dict[int | str, dict[str, Any]] = {"default": {"model": Failed, "description": "An error"}}


def cluster_routes(cluster: ClusterNow) -> APIRouter:
    """Return the routes about the cluster."""
    router = APIRouter(prefix="/api/v1/cluster", tags=["cluster"], responses=_ERRORS)

    @router.get("")
    def told(
        text: Annotated[str, Query(max_length=200, description="In what a host or job is known by.")] = "",
        only_mine: Annotated[bool, Query(alias="mine", description="Leave out jobs of others.")] = False,
        limit: Annotated[int, Query(ge=1, le=500)] = 200,
    ) -> ClusterTold:
        """Return queue and hosts as the scheduler told them last."""
        return cluster.told(text=text, only_mine=only_mine, limit=limit)

    @router.get("/events", response_class=Response)
    async def events(request: Request) -> Response:
        """Tell, as server-sent events, that the scheduler has answered, or has not."""
        return stream(request, cluster.stamp)

    return router
