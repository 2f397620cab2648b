"""``POST /v1/chat/completions``."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cacheir.runtime.engine.job import Job
from cacheir_server.answers import Answers
from cacheir_server.body import read_body
from cacheir_server.chat_choice import ChatChoice, SpelledText
from cacheir_server.choice import Choice, collect
from cacheir_server.errors import ApiError
from cacheir_server.logprob_fields import chat_logprobs
from cacheir_server.provenance import new_trace, provenance_field
from cacheir_server.sampling_fields import choice_sampling, choices, sampling_of
from cacheir_server.schemas.chat import ChatBody, Message
from cacheir_server.service import Service, new_id
from cacheir_server.streaming import event_stream
from cacheir_server.structured import MakeStages, stages_for
from cacheir_server.tools.calling import Calling, calling_of
from cacheir_server.usage import usage_of


async def chat_completions(request: Request, service: Service) -> Response:
    """The assistant's next message, ``n`` times."""
    body = await read_body(request, ChatBody)
    service.check_model(body.model)
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs to be true", param="top_logprobs", code="invalid_value")
    messages = [message_of(message) for message in body.messages]
    generation_prompt = body.add_generation_prompt is not False
    calling = calling_of(service, body)
    ids = await service.chat_ids(messages, calling.tools or None, generation_prompt, body.chat_template_kwargs)
    stages = await stages_for(service, body.response_format, body.structured_outputs, calling.demand)
    call = _Call(service, body, ids, stages, calling)
    answers = await service.start(call.jobs)
    if body.stream:
        return event_stream(call.chunks(answers))
    return JSONResponse(await call.whole(await collect(request, answers, call.choice)))


def message_of(message: Message) -> dict[str, Any]:
    """A message as templates know it: parts of text joined, ``developer`` as ``system``, no empty fields."""
    content = message.content
    if isinstance(content, list):
        content = "".join(part.text for part in content)
    role = "system" if message.role == "developer" else message.role
    found: dict[str, Any] = {"role": role, "content": content or ""}
    for name in ("name", "tool_calls", "tool_call_id"):
        if (value := getattr(message, name)) is not None:
            found[name] = value
    return found


class _Call:
    """One request: its jobs, and the shape of what goes back."""

    def __init__(
        self, service: Service, body: ChatBody, ids: Sequence[int], stages: MakeStages, calling: Calling
    ) -> None:
        self._service = service
        self._body = body
        self._calling = calling
        self._count = choices(body, service.settings.max_choices)
        self._id = new_id("chatcmpl")
        self._created = int(time.time())
        part = body.cacheir
        most = body.max_completion_tokens or body.max_tokens or service.settings.default_max_tokens
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        sampling = service.admit(ids, sampling_of(body, max_tokens=most, logprobs=logprobs))
        self.jobs = [
            Job(
                id=f"{self._id}-{choice}",
                ids=tuple(ids),
                sampling=choice_sampling(sampling, choice),
                priority=part.priority if part else 0,
                deadline=service.deadline(part.deadline_ms if part else None),
                salt=part.cache_salt if part else "",
                reuse=part.reuse if part else True,
                stages=stages(),
                trace=new_trace(part),
            )
            for choice in range(self._count)
        ]

    def choice(self) -> ChatChoice:
        """An answer that has not begun."""
        parser = self._calling.new_parser()
        # Text that a stop string cut is not to come back by its ids.
        spelled = SpelledText(self._service.runtime.model.tokenizer) if parser and not self._body.stop else None
        return ChatChoice(Choice(), parser, spelled)

    async def whole(self, found: Sequence[ChatChoice]) -> dict[str, Any]:
        """The response that is not streamed."""
        answers = [
            {
                "index": number,
                "message": choice.message(),
                "logprobs": self._logprobs(choice.base.logprobs) if self._body.logprobs else None,
                "finish_reason": choice.finish_reason,
            }
            for number, choice in enumerate(found)
        ]
        told = await provenance_field(self._service, self.jobs)
        return {**self._head("chat.completion"), "choices": answers, "usage": self._usage(found), **told}

    async def chunks(self, answers: Answers) -> AsyncIterator[dict[str, Any]]:
        """The chunks of a stream: the role, the text, the reason; the usage last where it is asked for."""
        options = self._body.stream_options
        counts = options is not None and bool(options.include_usage)
        found = [self.choice() for _ in answers.jobs]
        async with answers:
            for number in range(len(found)):
                yield self._chunk(number, {"role": "assistant", "content": ""}, None, None, counts)
            async for number, event in answers.events():
                choice = found[number]
                deltas = choice.take(event)
                logprobs = self._logprobs(event.logprobs) if event.logprobs else None
                if logprobs is not None and not deltas:
                    deltas = [{}]
                for delta in deltas:
                    yield self._chunk(number, delta, logprobs, None, counts)
                    logprobs = None  # told once
                if choice.finish_reason is not None:
                    yield self._chunk(number, {}, None, choice.finish_reason, counts)
        if told := await provenance_field(self._service, self.jobs):
            unused = {"usage": None} if counts else {}
            yield {**self._head("chat.completion.chunk"), "choices": [], **unused, **told}
        if counts:
            yield {**self._head("chat.completion.chunk"), "choices": [], "usage": self._usage(found)}

    def _chunk(
        self, number: int, delta: dict[str, Any], logprobs: dict[str, Any] | None, reason: str | None, counts: bool
    ) -> dict[str, Any]:
        choice = {"index": number, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return {**self._head("chat.completion.chunk"), "choices": [choice], **({"usage": None} if counts else {})}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._service.settings.model_name}

    def _logprobs(self, logprobs: Sequence[Any]) -> dict[str, Any]:
        return chat_logprobs(self._service.runtime.model.tokenizer, logprobs)

    def _usage(self, found: Sequence[ChatChoice]) -> dict[str, Any]:
        return usage_of([choice.base.usage for choice in found if choice.base.usage is not None], self._count)
