"""``POST /v1/responses``: one message out, whole or as typed events."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cacheir.runtime.engine.job import Job
from cacheir.runtime.sampling import SamplingParams
from cacheir_server.answers import Answers
from cacheir_server.body import read_body
from cacheir_server.choice import Choice, collect
from cacheir_server.errors import ApiError
from cacheir_server.provenance import new_trace, provenance_field
from cacheir_server.sampling_fields import plugins_of
from cacheir_server.schemas.responses import InputItem, ResponseBody
from cacheir_server.schemas.sampled import CacheIRPart
from cacheir_server.schemas.structured import JsonSchema, ResponseFormat
from cacheir_server.service import Service, new_id
from cacheir_server.streaming import typed_event_stream
from cacheir_server.structured import stages_for


async def create_response(request: Request, service: Service) -> Response:
    """The model's answer to ``input``."""
    body = await read_body(request, ResponseBody)
    service.check_model(body.model)
    ids = await service.chat_ids(_messages(body), None, True, None)
    stages = await stages_for(service, _format(body), None)
    most = body.max_output_tokens or service.settings.default_max_tokens
    temperature = 1.0 if body.temperature is None else body.temperature
    part = body.cacheir or CacheIRPart()
    params = SamplingParams(max_tokens=most, temperature=temperature, top_p=body.top_p or 1.0, **plugins_of(part))
    sampling = service.admit(ids, params)
    shape = _Shape(service, body)
    job = Job(
        id=shape.id,
        ids=tuple(ids),
        sampling=sampling,
        priority=part.priority,
        deadline=service.deadline(part.deadline_ms),
        salt=part.cache_salt,
        reuse=part.reuse,
        stages=stages(),
        trace=new_trace(part),
    )
    answers = await service.start([job])
    if body.stream:
        return typed_event_stream(shape.events(answers))
    (choice,) = await collect(request, answers, Choice)
    return JSONResponse({**shape.response(choice, _status(choice)), **await provenance_field(service, [job])})


class _Shape:
    """What goes back."""

    def __init__(self, service: Service, body: ResponseBody) -> None:
        self.id = new_id("resp")
        self._item = new_id("msg")
        self._created = int(time.time())
        self._service = service
        self._body = body

    def response(self, choice: Choice, status: str) -> dict[str, Any]:
        """The response object as it stands."""
        body, usage = self._body, choice.usage
        told = None
        if usage is not None:
            told = {
                "input_tokens": usage.prompt_tokens,
                "input_tokens_details": {"cached_tokens": usage.cached_tokens},
                "output_tokens": usage.sampled_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage.prompt_tokens + usage.sampled_tokens,
            }
        form = body.text.format.model_dump(by_alias=True, exclude_none=True) if body.text and body.text.format else None
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "model": self._service.settings.model_name,
            "output": [] if status == "in_progress" else [self._message(choice, status)],
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "store": False,
            "temperature": body.temperature,
            "text": {"format": form or {"type": "text"}},
            "tool_choice": "none",
            "tools": [],
            "top_p": body.top_p,
            "truncation": "disabled",
            "usage": told,
            "metadata": body.metadata or {},
        }

    async def events(self, answers: Answers) -> AsyncIterator[dict[str, Any]]:
        """The typed events of a stream, numbered."""
        number = 0

        def event(kind: str, **fields: Any) -> dict[str, Any]:
            nonlocal number
            number += 1
            return {"type": kind, "sequence_number": number - 1, **fields}

        choice = Choice()
        place = {"item_id": self._item, "output_index": 0, "content_index": 0}
        async with answers:
            yield event("response.created", response=self.response(choice, "in_progress"))
            yield event("response.in_progress", response=self.response(choice, "in_progress"))
            begun = {**self._message(choice, "in_progress"), "content": []}
            yield event("response.output_item.added", output_index=0, item=begun)
            yield event("response.content_part.added", **place, part=_part(""))
            async for _, piece in answers.events():
                choice.take(piece)
                if piece.text:
                    yield event("response.output_text.delta", **place, delta=piece.text, logprobs=[])
        status = _status(choice)
        yield event("response.output_text.done", **place, text=choice.text, logprobs=[])
        yield event("response.content_part.done", **place, part=_part(choice.text))
        yield event("response.output_item.done", output_index=0, item=self._message(choice, status))
        told = await provenance_field(self._service, answers.jobs)
        yield event(f"response.{status}", response={**self.response(choice, status), **told})

    def _message(self, choice: Choice, status: str) -> dict[str, Any]:
        content = [_part(choice.text)]
        return {"id": self._item, "type": "message", "status": status, "role": "assistant", "content": content}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _status(choice: Choice) -> str:
    return "incomplete" if choice.finish_reason == "length" else "completed"


def _messages(body: ResponseBody) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if body.instructions is not None:
        messages.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        return [*messages, {"role": "user", "content": body.input}]
    if not body.input:
        raise ApiError(400, "input holds no message", param="input", code="invalid_value")
    return messages + [_message_of(item) for item in body.input]


def _message_of(item: InputItem) -> dict[str, Any]:
    content = item.content if isinstance(item.content, str) else "".join(part.text for part in item.content)
    return {"role": "system" if item.role == "developer" else item.role, "content": content}


def _format(body: ResponseBody) -> ResponseFormat | None:
    form = body.text.format if body.text else None
    if form is None:
        return None
    schema = None if form.schema_ is None else JsonSchema.model_validate({"schema": form.schema_})
    return ResponseFormat(type=form.type, json_schema=schema)
