"""``/health``, ``/healthz`` and ``/ready``: alive means that steps end, not that a process runs."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cacheir_server.service import Service


async def health(request: Request, service: Service) -> Response:
    """200 while idle or moving; 503 once a step takes longer than ``stall_s``, or the engine's thread has ended."""
    thread = service.thread
    stalled = thread.stalled_seconds
    if not thread.alive:
        return _answer(503, "the engine has failed", stalled)
    if stalled > service.settings.stall_s:
        return _answer(503, "the engine has not finished a step in time", stalled)
    return _answer(200, "ok", stalled)


async def ready(request: Request, service: Service) -> Response:
    """As ``health``, and 503 as well while the server drains."""
    if service.thread.draining:
        return _answer(503, "draining", service.thread.stalled_seconds)
    return await health(request, service)


def _answer(status: int, text: str, stalled: float) -> Response:
    return JSONResponse({"status": text, "step_seconds": round(stalled, 3)}, status_code=status)
