"""One choice of an answer as it grows: text, ids, logprobs, and how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from starlette.requests import Request

from cacheir.errors import DeadlineExceeded, RequestCancelled
from cacheir.runtime.engine.job import Event, TokenLogprobs, Usage
from cacheir_server.answers import Answers
from cacheir_server.errors import RETRY_AFTER_S, ApiError


@dataclass
class Choice:
    """What has come of one job."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    finish_reason: str | None = None
    usage: Usage | None = None

    def take(self, event: Event) -> None:
        """Adds an event; ``DeadlineExceeded`` or ``ApiError`` where the job failed."""
        self.text += event.text
        self.ids += event.ids
        self.logprobs += event.logprobs
        if event.prompt_logprobs is not None:
            self.prompt_logprobs = event.prompt_logprobs
        if event.outcome is not None:
            self.usage = event.usage
            self.finish_reason = finish_reason(event)


def finish_reason(event: Event) -> str:
    """``stop`` or ``length``; ``DeadlineExceeded`` or ``ApiError`` for every other outcome."""
    if event.outcome in ("stop", "length"):
        return event.outcome
    if event.outcome == "deadline":
        raise DeadlineExceeded("the deadline passed before the answer was complete")
    if event.outcome == "cancelled":
        raise ApiError(
            503, "the answer was cancelled: the server is shutting down", kind="server_error", code="cancelled"
        )
    if event.error_kind == "request":
        raise ApiError(400, f"the request cannot be answered further: {event.error}", code="invalid_value")
    if event.error_kind == "capacity":
        headers = {"Retry-After": str(RETRY_AFTER_S)}
        message = f"the server has no room for the request: {event.error}"
        raise ApiError(503, message, kind="server_error", code="no_capacity", headers=headers)
    raise ApiError(500, f"the engine failed: {event.error}", kind="server_error", code="engine_error")


class Takes(Protocol):
    """Something that events are added to."""

    def take(self, event: Event) -> object: ...


Grown = TypeVar("Grown", bound=Takes)


async def collect(request: Request, answers: Answers, make: Callable[[], Grown]) -> list[Grown]:
    """All choices of ``answers``, complete, each begun by ``make``. A client that goes away meanwhile cancels them."""

    async def gather() -> list[Grown]:
        choices = [make() for _ in answers.jobs]
        async for number, event in answers.events():
            choices[number].take(event)
        return choices

    async with answers:
        work = asyncio.ensure_future(gather())
        gone = asyncio.ensure_future(_disconnected(request.receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            raise RequestCancelled("the client closed the connection")
        finally:
            work.cancel()
            gone.cancel()


async def _disconnected(receive: Callable[[], Awaitable[object]]) -> None:
    while True:
        message = await receive()
        if isinstance(message, dict) and message["type"] == "http.disconnect":
            return
