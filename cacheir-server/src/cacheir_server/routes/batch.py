"""``POST /v1/cacheir/batch_completions``: several completions, taken together or not at all."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cacheir_server.body import read_body
from cacheir_server.choice import Choice, collect
from cacheir_server.errors import ApiError
from cacheir_server.routes.completions import CompletionCall, call_of
from cacheir_server.schemas.batch import BatchBody
from cacheir_server.service import Service


async def batch_completions(request: Request, service: Service) -> Response:
    """The answers in the order of the requests; 429 for all where the queue has no room for all."""
    body = await read_body(request, BatchBody)
    calls: list[CompletionCall] = []
    for number, one in enumerate(body.requests):
        if one.stream:
            message = "a batch is not streamed"
            raise ApiError(400, message, param=f"requests.{number}.stream", code="unsupported_field")
        calls.append(await call_of(service, one))
    found = await collect(request, await service.start([job for call in calls for job in call.jobs]), Choice)
    responses = []
    for call in calls:
        mine, found = found[: len(call.jobs)], found[len(call.jobs) :]
        responses.append(await call.whole(mine))
    return JSONResponse({"object": "list", "data": responses})
