"""``GET /metrics``, in Prometheus' text format."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import Response

from cacheir_server.service import Service


async def metrics(request: Request, service: Service) -> Response:
    """All metrics as they are now."""
    return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)
