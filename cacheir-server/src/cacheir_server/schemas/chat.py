"""``POST /v1/chat/completions``: messages in, a message out."""

from __future__ import annotations

from typing import Any, Literal

from cacheir_server.schemas.field import Body, honoured, ignored
from cacheir_server.schemas.sampled import Sampled
from cacheir_server.schemas.structured import ResponseFormat
from cacheir_server.schemas.tools import NamedTool, Tool


class TextPart(Body):
    """A part of a message's content; of OpenAI's kinds a text model reads text alone."""

    type: Literal["text"] = honoured(...)
    text: str = honoured(...)


class Message(Body):
    """One message of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"] = honoured(...)
    content: str | list[TextPart] | None = honoured(None)
    name: str | None = honoured(None)
    tool_calls: list[dict[str, Any]] | None = honoured(None)
    tool_call_id: str | None = honoured(None)
    refusal: None = honoured(None)


class ChatBody(Sampled):
    """OpenAI's chat request. ``max_completion_tokens`` counts where both limits are given."""

    messages: list[Message] = honoured(..., min_length=1)
    max_tokens: int | None = honoured(None, ge=1)
    max_completion_tokens: int | None = honoured(None, ge=1)
    logprobs: bool | None = honoured(None)
    top_logprobs: int | None = honoured(None, "Needs logprobs.", ge=0, le=20)
    response_format: ResponseFormat | None = honoured(None)
    tools: list[Tool] | None = honoured(None, max_length=128)
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = honoured(None)
    parallel_tool_calls: bool | None = ignored("How many calls an answer has is the model's choice.")
    add_generation_prompt: bool | None = honoured(None)
    chat_template_kwargs: dict[str, Any] | None = honoured(None, "Further variables of the template.")
