"""``POST /tokenize`` and ``POST /detokenize``."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cacheir_server.body import read_body
from cacheir_server.errors import ApiError
from cacheir_server.routes.chat import message_of
from cacheir_server.schemas.tokens import DetokenizeBody, TokenizeBody
from cacheir_server.service import Service


async def tokenize(request: Request, service: Service) -> Response:
    """The ids of a text, or of messages by the chat template, as a prompt of them would have."""
    body = await read_body(request, TokenizeBody)
    if body.model is not None:
        service.check_model(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "give either prompt or messages", param="prompt", code="invalid_value")
    if body.prompt is not None:
        ids = await service.encode(body.prompt)
    else:
        messages = [message_of(message) for message in body.messages or ()]
        ids = await service.chat_ids(messages, None, body.add_generation_prompt is not False, None)
    return JSONResponse({"tokens": ids, "count": len(ids), "max_model_len": service.runtime.model.limits.max_seq})


async def detokenize(request: Request, service: Service) -> Response:
    """The text of ids, control tokens included."""
    body = await read_body(request, DetokenizeBody)
    if body.model is not None:
        service.check_model(body.model)
    return JSONResponse({"prompt": service.runtime.decode(service.check_ids(body.tokens), skip_special=False)})
