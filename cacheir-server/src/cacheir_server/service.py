"""One model behind the server: its runtime, its engine's thread, and what routes need to know of it."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from cacheir.errors import RequestTooLong
from cacheir.runtime.engine.engine import Engine
from cacheir.runtime.engine.engine_thread import EngineThread
from cacheir.runtime.engine.job import Job
from cacheir.runtime.provenance import made_by
from cacheir.runtime.request import admit, check_ids
from cacheir.runtime.runtime import Runtime
from cacheir.runtime.sampling import SamplingParams
from cacheir_server.answers import Answers
from cacheir_server.errors import ApiError, shutting_down
from cacheir_server.metrics import Metrics
from cacheir_server.settings import ServerSettings
from cacheir_server.spans import current_span

# A text shorter than this is encoded on the event loop: a hop to a thread costs more.
_SHORT_TEXT = 4096
# Names from requests are cut to this length where they are repeated in an answer.
_SHOWN_NAME = 80


class Service:
    """What lives as long as the server does. ``close`` ends the engine and the runtime."""

    def __init__(self, runtime: Runtime, settings: ServerSettings, engine: Engine) -> None:
        self.runtime = runtime
        self.settings = settings
        self.created = int(time.time())
        self.metrics = Metrics(engine)
        self.thread = EngineThread(engine)

    def check_model(self, name: str) -> None:
        """404 for a name that is not the model's; a name is compared and never opened."""
        if name != self.settings.model_name:
            shown = name if len(name) <= _SHOWN_NAME else name[:_SHOWN_NAME] + "..."
            message = f"there is no model {shown!r} here; GET /v1/models lists what there is"
            raise ApiError(404, message, param="model", code="model_not_found")

    def check_open(self) -> None:
        """503 while the server drains, or once its engine has failed."""
        if self.thread.draining:
            raise shutting_down()
        if not self.thread.alive:
            raise ApiError(503, "the engine has failed; the server must be restarted", kind="server_error")

    async def encode(self, text: str) -> list[int]:
        """The ids of a prompt; ``RequestTooLong`` before anything is encoded where no encoding of it could fit."""
        self._check_size(len(text.encode()))
        if len(text) <= _SHORT_TEXT:
            return self.runtime.encode(text)
        return await asyncio.to_thread(self.runtime.encode, text)

    async def chat_ids(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        variables: Mapping[str, Any] | None,
    ) -> list[int]:
        """The ids of a chat by the model's template."""
        self._check_size(sum(len(text.encode()) for text in _texts(messages)))

        def render() -> list[int]:
            return self.runtime.chat_ids(
                messages, tools=tools, add_generation_prompt=add_generation_prompt, variables=variables
            )

        return await asyncio.to_thread(render)

    def check_ids(self, ids: Sequence[Any]) -> list[int]:
        """Token ids of a request, all of them the model's."""
        return check_ids(ids, self.runtime.model.limits.vocab_size)

    def admit(self, ids: Sequence[int], sampling: SamplingParams) -> SamplingParams:
        """As ``request.admit``."""
        return admit(len(ids), sampling, self.runtime.model.limits)

    def deadline(self, milliseconds: float | None) -> float | None:
        """On the engine's clock."""
        return None if milliseconds is None else time.monotonic() + milliseconds / 1000

    async def start(self, jobs: Sequence[Job]) -> Answers:
        """Queues ``jobs``, all or none."""
        self.check_open()
        self.metrics.asked(jobs)
        span = current_span()
        observe = self.metrics.observe if span is None else span.observing(jobs, self.metrics.observe)
        answers = Answers(self.thread, jobs, observe)
        try:
            await answers.start(queue_wait_s=self.settings.queue_wait_s)
        except Exception:
            if span is not None:
                span.never_ran(jobs)
            raise
        return answers

    @cached_property
    def ledger(self) -> dict[str, Any]:
        """The kernels, passes and plugins of the model's artifact, read when they are first asked for."""
        return made_by(self.runtime.artifact)

    def close(self) -> None:
        """Ends what runs, and lets go of the model."""
        self.thread.close()
        self.runtime.close()

    def _check_size(self, text_bytes: int) -> None:
        limit = self.runtime.model.limits.max_seq
        least = text_bytes // self._longest_token_bytes
        if least >= limit:
            raise RequestTooLong(
                f"the prompt has at least {least} tokens and the context holds {limit}", hint="shorten the prompt"
            )

    @cached_property
    def _longest_token_bytes(self) -> int:
        tokenizer = self.runtime.model.tokenizer
        return max((len(tokenizer.token_bytes(token)) for token in range(tokenizer.vocab_size)), default=1) or 1


def new_id(prefix: str) -> str:
    """A fresh id such as ``chatcmpl-...``."""
    return f"{prefix}-{uuid.uuid4().hex}"


def _texts(value: Any) -> Sequence[str]:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Mapping):
        value = list(value.values())
    return [text for item in value for text in _texts(item)] if isinstance(value, (list, tuple)) else ()
