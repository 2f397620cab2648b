"""``GET /v1/cacheir/contract``: for every route, which field is honoured and which is taken and changes nothing."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cacheir_server.schemas.field import CONTRACT
from cacheir_server.service import Service

# What a field that is in no list gets.
OTHERS = "refused with status 400 and code unsupported_field"


async def contract(request: Request, service: Service) -> Response:
    """Made of the schemas themselves, so that it cannot say what they do not do."""
    bodies: dict[str, type[BaseModel]] = request.app.state.bodies
    routes = {path: fields_of(body) for path, body in sorted(bodies.items())}
    return JSONResponse({"format": 1, "others": OTHERS, "routes": routes})


def fields_of(body: type[BaseModel], prefix: str = "") -> dict[str, dict[str, Any]]:
    """``{"honoured": {field: text}, "ignored": {field: text}}``; a field of a part is written ``part.field``."""
    found: dict[str, dict[str, Any]] = {"honoured": {}, "ignored": {}}
    for name, info in body.model_fields.items():
        extra = info.json_schema_extra
        assert isinstance(extra, dict), f"{body.__name__}.{name} does not say whether it is honoured"
        found[str(extra[CONTRACT])][prefix + name] = info.description or ""
        for part in _parts(info.annotation):
            for kind, fields in fields_of(part, f"{prefix}{name}.").items():
                found[kind].update(fields)
    return found


def _parts(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [part for argument in get_args(annotation) for part in _parts(argument)]
