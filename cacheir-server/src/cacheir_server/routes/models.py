"""``GET /v1/models`` and ``GET /v1/models/{name}``: the one model there is, by its name and never by its path."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cacheir_server.service import Service


async def list_models(request: Request, service: Service) -> Response:
    """All models, which is one."""
    return JSONResponse({"object": "list", "data": [_model(service)]})


async def show_model(request: Request, service: Service) -> Response:
    """One model; 404 for a name that is not its."""
    service.check_model(request.path_params["name"])
    return JSONResponse(_model(service))


def _model(service: Service) -> dict[str, Any]:
    model = service.runtime.model
    return {
        "id": service.settings.model_name,
        "object": "model",
        "created": service.created,
        "owned_by": "cacheir",
        "max_model_len": model.limits.max_seq,
        "backend": model.program.backend,
    }
