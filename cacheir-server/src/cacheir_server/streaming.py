"""Server-sent events: the chunks of an answer, one after another, and an end that tells what went wrong if it did."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.responses import StreamingResponse

from cacheir_server.errors import api_error

DONE = "data: [DONE]\n\n"


def event_stream(chunks: AsyncIterator[Mapping[str, Any]]) -> StreamingResponse:
    """A response that sends ``chunks``; closing the connection closes the iterator, which cancels the work."""
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(_lines(chunks), media_type="text/event-stream", headers=headers)


def data_line(chunk: Mapping[str, Any]) -> str:
    """One event. Numbers that are not finite cannot occur: ``allow_nan`` would write what is no JSON."""
    return f"data: {json.dumps(chunk, ensure_ascii=False, allow_nan=False, separators=(',', ':'))}\n\n"


def typed_event_stream(events: AsyncIterator[Mapping[str, Any]]) -> StreamingResponse:
    """As ``event_stream``, for events that have a name in their ``type``; there is no [DONE]."""
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(_typed_lines(events), media_type="text/event-stream", headers=headers)


async def _typed_lines(events: AsyncIterator[Mapping[str, Any]]) -> AsyncIterator[str]:
    try:
        async for event in events:
            yield f"event: {event['type']}\n{data_line(event)}"
    except Exception as error:  # noqa: BLE001  the status line is out already: the client is told in an event
        told = api_error(error).body["error"]
        yield f"event: error\n{data_line({'type': 'error', **told})}"


async def _lines(chunks: AsyncIterator[Mapping[str, Any]]) -> AsyncIterator[str]:
    try:
        async for chunk in chunks:
            yield data_line(chunk)
    except Exception as error:  # noqa: BLE001  the status line is out already: the client is told in an event
        yield data_line(api_error(error).body)
    yield DONE
