"""``POST /v1/completions``."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cacheir.runtime.engine.job import Job
from cacheir_server.answers import Answers
from cacheir_server.body import read_body
from cacheir_server.choice import Choice, collect
from cacheir_server.errors import ApiError
from cacheir_server.logprob_fields import completion_logprobs
from cacheir_server.provenance import new_trace, provenance_field
from cacheir_server.sampling_fields import choice_sampling, choices, sampling_of
from cacheir_server.schemas.completions import CompletionBody
from cacheir_server.service import Service, new_id
from cacheir_server.streaming import event_stream
from cacheir_server.structured import MakeStages, stages_for
from cacheir_server.usage import usage_of

_DEFAULT_MAX_TOKENS = 16  # OpenAI's


async def completions(request: Request, service: Service) -> Response:
    """Continues one prompt or several, each as often as ``n`` says; choices are numbered prompt by prompt."""
    body = await read_body(request, CompletionBody)
    call = await call_of(service, body)
    answers = await service.start(call.jobs)
    if body.stream:
        return event_stream(call.chunks(answers))
    return JSONResponse(await call.whole(await collect(request, answers, Choice)))


async def call_of(service: Service, body: CompletionBody) -> CompletionCall:
    """``body`` as jobs; ``ApiError`` for what cannot be."""
    service.check_model(body.model)
    stages = await stages_for(service, None, body.structured_outputs)
    return CompletionCall(service, body, await prompts_of(service, body.prompt, "prompt"), stages)


class CompletionCall:
    """One request: its jobs, and the shape of what goes back."""

    def __init__(
        self, service: Service, body: CompletionBody, prompts: Sequence[list[int]], stages: MakeStages
    ) -> None:
        self._service = service
        self._stages = stages
        self._body = body
        self._prompts = prompts
        self._count = choices(body, service.settings.max_choices)
        if body.best_of not in (None, self._count):
            raise ApiError(400, "best_of must equal n: all answers are given back", param="best_of")
        if body.max_tokens == 0 and not body.echo:
            raise ApiError(400, "max_tokens must be at least 1, unless echo is set", param="max_tokens")
        self._head = {
            "id": new_id("cmpl"),
            "object": "text_completion",
            "created": int(time.time()),
            "model": service.settings.model_name,
        }
        self.jobs = [self._job(ids, choice) for ids in prompts for choice in range(self._count)]

    async def whole(self, found: Sequence[Choice]) -> dict[str, Any]:
        """The response that is not streamed."""
        answers = [self._choice(number, choice) for number, choice in enumerate(found)]
        told = await self._provenance()
        return {**self._head, "choices": answers, "usage": self._usage(found), **told}

    async def chunks(self, answers: Answers) -> AsyncIterator[dict[str, Any]]:
        """The chunks of a stream."""
        options = self._body.stream_options
        counts = options is not None and bool(options.include_usage)
        found, places = [Choice() for _ in answers.jobs], [0] * len(answers.jobs)
        async with answers:
            async for number, event in answers.events():
                choice = found[number]
                first, known = not choice.ids and not choice.text, len(choice.ids)
                choice.take(event)
                last = choice.finish_reason is not None
                if self._body.max_tokens == 0:  # the prompt alone, once the one token that it takes has come
                    if last:
                        yield self._chunk(self._choice(number, choice), counts)
                    continue
                if not event.text and not event.logprobs and not last:
                    continue
                text, ids, logprobs = event.text, choice.ids[known:], None
                if self._body.echo and first:
                    text, ids = self._prompt_text(number) + text, self._prompts[number // self._count] + ids
                if scored := (*(event.prompt_logprobs or ()), *event.logprobs):
                    logprobs = completion_logprobs(self._tokenizer, ids, scored, places[number])
                places[number] += sum(map(len, logprobs["tokens"])) if logprobs is not None else 0
                yield self._chunk(_entry(number, text, logprobs, choice.finish_reason), counts)
        if told := await self._provenance():
            yield {**self._head, "choices": [], **({"usage": None} if counts else {}), **told}
        if counts:
            yield {**self._head, "choices": [], "usage": self._usage(found)}

    async def _provenance(self) -> dict[str, Any]:
        """Without max_tokens a token is sampled that the answer hides, and so does its ledger."""
        return await provenance_field(self._service, self.jobs, tokens=self._body.max_tokens != 0)

    def _chunk(self, entry: dict[str, Any], counts: bool) -> dict[str, Any]:
        return {**self._head, "choices": [entry], **({"usage": None} if counts else {})}

    @property
    def _tokenizer(self) -> Any:
        return self._service.runtime.model.tokenizer

    def _job(self, ids: list[int], choice: int) -> Job:
        body, part = self._body, self._body.cacheir
        most = _DEFAULT_MAX_TOKENS if body.max_tokens is None else max(body.max_tokens, 1)
        # The logprobs of a prompt that is echoed come from its own logits, which no cache has.
        echoed = body.logprobs if body.echo else None
        sampling = sampling_of(body, max_tokens=most, logprobs=body.logprobs)
        return Job(
            id=f"{self._head['id']}-{len(self._prompts)}-{new_id('job')}",
            ids=tuple(ids),
            sampling=choice_sampling(self._service.admit(ids, sampling), choice),
            priority=part.priority if part else 0,
            deadline=self._service.deadline(part.deadline_ms if part else None),
            salt=part.cache_salt if part else "",
            reuse=part.reuse if part else True,
            prompt_logprobs=echoed,
            stages=self._stages(),
            trace=new_trace(part),
        )

    def _choice(self, number: int, choice: Choice) -> dict[str, Any]:
        body, text, ids = self._body, choice.text, list(choice.ids)
        logprobs: list[Any] = list(choice.logprobs)
        reason = choice.finish_reason
        if body.max_tokens == 0:
            text, ids, logprobs, reason = "", [], [], "length"
        if body.echo:
            prompt = self._prompts[number // self._count]
            text, ids = self._prompt_text(number) + text, prompt + ids
            logprobs = [*(choice.prompt_logprobs or ()), *logprobs]
        told = completion_logprobs(self._tokenizer, ids, logprobs, 0) if body.logprobs is not None else None
        return _entry(number, text, told, reason)

    def _prompt_text(self, number: int) -> str:
        text: str = self._service.runtime.decode(self._prompts[number // self._count])
        return text

    def _usage(self, found: Sequence[Choice]) -> dict[str, Any]:
        usage = usage_of([choice.usage for choice in found if choice.usage is not None], self._count)
        if self._body.max_tokens == 0:
            usage["completion_tokens"], usage["total_tokens"] = 0, usage["prompt_tokens"]
        return usage


def _entry(number: int, text: str, logprobs: dict[str, Any] | None, reason: str | None) -> dict[str, Any]:
    return {"index": number, "text": text, "logprobs": logprobs, "finish_reason": reason}


async def prompts_of(service: Service, prompt: Any, field: str) -> list[list[int]]:
    """The ids of one prompt or several, each a text or ids; ``field`` is what the request calls them."""
    if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
        prompt = [prompt]
    if not prompt or len(prompt) > service.settings.max_batch_prompts:
        most = service.settings.max_batch_prompts
        raise ApiError(400, f"{field} must hold from 1 to {most} texts, not {len(prompt)}", param=field)
    return [await service.encode(one) if isinstance(one, str) else service.check_ids(one) for one in prompt]
