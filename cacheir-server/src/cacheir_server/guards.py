"""What stands before every route: keys, sizes and times. Plain ASGI, so that nothing is read before it is allowed."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from cacheir_server.errors import ApiError, error_response
from cacheir_server.settings import ServerSettings

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# The only paths that answer without a key, exactly as spelt: they tell whether the server lives, and nothing else.
OPEN_PATHS = frozenset({"/health", "/healthz", "/ready"})


_LENGTH_DIGITS = 18  # a longer Content-Length is above every limit, and Python reads no number without end


class KeyGuard:
    """401 for every path but ``OPEN_PATHS`` where the key is missing or wrong; unknown paths are no exception."""

    def __init__(self, app: App, settings: ServerSettings) -> None:
        self._app = app
        self._keys = [key.encode() for key in settings.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._keys or scope["type"] == "lifespan" or scope.get("path") in OPEN_PATHS or self._knows(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            message = "the API key is missing or wrong: send it as 'Authorization: Bearer KEY'"
            error = ApiError(
                401,
                message,
                kind="authentication_error",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
            await error_response(error)(scope, receive, send)

    def _knows(self, scope: Scope) -> bool:
        given = [value for name, value in scope.get("headers", ()) if name.lower() == b"authorization"]
        if len(given) != 1:
            return False
        scheme, _, key = bytes(given[0]).partition(b" ")
        # Every key is compared, in a time that does not depend on where it differs.
        matches = [hmac.compare_digest(key, known) for known in self._keys]
        return scheme.lower() == b"bearer" and any(matches)


class BodyGuard:
    """413 for a body above the limit, while it is read; 415 for a packed one; 408 for one that does not come."""

    def __init__(self, app: App, settings: ServerSettings) -> None:
        self._app = app
        self._limit = settings.max_body_bytes
        self._timeout_s = settings.body_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {bytes(name).lower(): bytes(value) for name, value in scope.get("headers", ())}
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            if headers.get(b"content-encoding", b"identity") != b"identity":
                raise ApiError(415, "packed bodies are not read; send the JSON as it is", code="unsupported_media_type")
            announced = headers.get(b"content-length", b"")
            if announced.isdigit() and (len(announced) > _LENGTH_DIGITS or int(announced) > self._limit):
                raise self._too_large()
            await self._app(scope, self._counted(receive), sending)
        except ApiError as error:
            if started:
                raise
            await error_response(error)(scope, receive, send)

    def _counted(self, receive: Receive) -> Receive:
        size, complete = 0, False

        async def counting() -> Message:
            nonlocal size, complete
            if complete:
                return await receive()  # what comes now is a disconnect, and may take as long as the answer
            try:
                message = await asyncio.wait_for(receive(), self._timeout_s)
            except asyncio.TimeoutError:
                raise ApiError(408, "the body did not come in time", code="request_timeout") from None
            if message["type"] == "http.request":
                size += len(message.get("body", b""))
                complete = not message.get("more_body", False)
                if size > self._limit:
                    raise self._too_large()
            return message

        return counting

    def _too_large(self) -> ApiError:
        return ApiError(413, f"the body is larger than {self._limit} bytes", code="body_too_large")
