"""The application: routes over one service, guards in front, and every error in OpenAI's shape."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from cacheir_server.errors import ApiError, api_error, error_response
from cacheir_server.guards import BodyGuard, KeyGuard
from cacheir_server.routes.batch import batch_completions
from cacheir_server.routes.chat import chat_completions
from cacheir_server.routes.completions import completions
from cacheir_server.routes.contract import contract
from cacheir_server.routes.embeddings import embeddings
from cacheir_server.routes.health import health, ready
from cacheir_server.routes.incident import incident
from cacheir_server.routes.metrics import metrics
from cacheir_server.routes.models import list_models, show_model
from cacheir_server.routes.responses import create_response
from cacheir_server.routes.tokens import detokenize, tokenize
from cacheir_server.schemas.batch import BatchBody
from cacheir_server.schemas.chat import ChatBody
from cacheir_server.schemas.completions import CompletionBody
from cacheir_server.schemas.embeddings import EmbeddingBody
from cacheir_server.schemas.responses import ResponseBody
from cacheir_server.schemas.tokens import DetokenizeBody, TokenizeBody
from cacheir_server.service import Service
from cacheir_server.spans import SpanGuard, Spans

Handler = Callable[[Request, Service], Awaitable[Response]]

# Method, path, handler, and the body that it reads.
ROUTES: tuple[tuple[str, str, Handler, type[BaseModel] | None], ...] = (
    ("GET", "/v1/models", list_models, None),
    ("GET", "/v1/models/{name:path}", show_model, None),
    ("POST", "/v1/completions", completions, CompletionBody),
    ("POST", "/v1/chat/completions", chat_completions, ChatBody),
    ("POST", "/v1/responses", create_response, ResponseBody),
    ("POST", "/v1/embeddings", embeddings, EmbeddingBody),
    ("POST", "/v1/cacheir/batch_completions", batch_completions, BatchBody),
    ("POST", "/tokenize", tokenize, TokenizeBody),
    ("POST", "/detokenize", detokenize, DetokenizeBody),
    ("GET", "/v1/cacheir/contract", contract, None),
    ("GET", "/v1/cacheir/incident", incident, None),
    ("GET", "/metrics", metrics, None),
    ("GET", "/health", health, None),
    ("GET", "/healthz", health, None),
    ("GET", "/ready", ready, None),
)


def create_app(service: Service, spans: Spans | None = None) -> FastAPI:
    """The ASGI application over ``service``, which it closes when it ends, as it does ``spans``."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()
        if spans is not None:
            await asyncio.to_thread(spans.close)

    app = FastAPI(title="CacheIR", lifespan=lifespan, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.bodies = {path: body for _, path, _, body in ROUTES if body is not None}
    for method, path, handler, body in ROUTES:
        app.add_api_route(path, _endpoint(handler, service), methods=[method], **_documented(handler, body))
    app.add_exception_handler(Exception, _on_error)
    app.add_exception_handler(ApiError, _on_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_middleware(BodyGuard, settings=service.settings)
    app.add_middleware(KeyGuard, settings=service.settings)
    if spans is not None:
        app.add_middleware(SpanGuard, spans=spans, paths=frozenset(app.state.bodies))
    return app


def _endpoint(handler: Handler, service: Service) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            return await handler(request, service)
        except Exception as error:
            told = api_error(error)
            if told.body["error"]["code"] == "internal_error":
                raise
            # What the engine refused it has counted itself.
            if request.method == "POST" and 400 <= told.status < 500 and told.status not in (429, 499):
                service.metrics.rejected += 1
            raise told from error

    endpoint.__name__ = handler.__name__
    return endpoint


def _documented(handler: Handler, body: type[BaseModel] | None) -> dict[str, Any]:
    """What the OpenAPI document says of a route; bodies are checked by ``body.parse``, not by the framework."""
    found: dict[str, Any] = {"summary": (handler.__doc__ or "").split("\n")[0], "response_model": None}
    if body is not None:
        schema = body.model_json_schema(ref_template="#/components/schemas/{model}")
        found["openapi_extra"] = {
            "requestBody": {"required": True, "content": {"application/json": {"schema": _inlined(schema)}}}
        }
    found["responses"] = {"4XX": {"description": "What was wrong, as {error: {message, type, param, code}}."}}
    return found


def _inlined(schema: Any, definitions: dict[str, Any] | None = None) -> Any:
    """``schema`` with its own definitions in place of references to them: a route is documented on its own."""
    if isinstance(schema, dict):
        known = definitions or schema.get("$defs", {})
        if "$ref" in schema:
            return _inlined(known[schema["$ref"].rsplit("/", 1)[1]], known)
        return {name: _inlined(value, known) for name, value in schema.items() if name != "$defs"}
    return [_inlined(item, definitions) for item in schema] if isinstance(schema, list) else schema


async def _on_error(request: Request, error: Exception) -> Response:
    return error_response(api_error(error))


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kinds = {404: ("there is no such path", "not_found"), 405: ("the path does not take this method", "bad_method")}
    message, code = kinds.get(error.status_code, (str(error.detail), "http_error"))
    headers = dict(error.headers) if error.headers else None
    return error_response(ApiError(error.status_code, message, code=code, headers=headers))
