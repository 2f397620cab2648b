"""``GET /v1/cacheir/incident``: the flight recorder, for ``cacheir incident save``."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cacheir_server.answers import on_engine
from cacheir_server.service import Service


async def incident(request: Request, service: Service) -> Response:
    """The last decisions of the scheduler with their requests and tokens; prompts are in it, so it needs the key."""
    key = service.runtime.artifact.lock.program_key
    found = await on_engine(service.thread, lambda engine: engine.recorder.incident(key, engine.state.limits))
    return JSONResponse(found)
