"""Errors in OpenAI's shape: what went wrong becomes a status and ``{"error": {message, type, param, code}}``."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse

from cacheir.errors import CacheIRError, DeadlineExceeded, QueueFull, RequestCancelled, RequestError, RequestTooLong

# A refused client may try again after so many seconds.
RETRY_AFTER_S = 1


class ApiError(Exception):
    """An answer that is an error. ``param`` names the field at fault, ``code`` is for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        self.body: dict[str, Any] = {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_response(error: ApiError) -> JSONResponse:
    """The response for ``error``."""
    return JSONResponse(error.body, status_code=error.status, headers=error.headers)


def api_error(error: Exception, *, param: str | None = None) -> ApiError:
    """What a client is told of ``error``; never the name of a class or a path of the server."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, QueueFull):
        headers = {"Retry-After": str(RETRY_AFTER_S)}
        return ApiError(error.status, _text(error), kind="rate_limit_error", code="queue_full", headers=headers)
    if isinstance(error, RequestTooLong):
        return ApiError(400, _text(error), param=param, code="context_length_exceeded")
    if isinstance(error, DeadlineExceeded):
        return ApiError(error.status, _text(error), kind="server_error", code="deadline")
    if isinstance(error, RequestCancelled):
        return ApiError(error.status, _text(error), code="client_closed")
    if isinstance(error, RequestError):
        return ApiError(400, _text(error), param=param, code="invalid_value")
    if isinstance(error, CacheIRError):
        return ApiError(500, _text(error), kind="server_error", code="engine_error")
    return ApiError(500, "the server failed; its log says at what", kind="server_error", code="internal_error")


def shutting_down() -> ApiError:
    """For requests that come while the server drains."""
    headers = {"Retry-After": str(RETRY_AFTER_S), "Connection": "close"}
    return ApiError(503, "the server is shutting down", kind="server_error", code="shutting_down", headers=headers)


def _text(error: CacheIRError) -> str:
    hint = getattr(error, "hint", None)
    return f"{error}; {hint}" if hint else str(error)
