"""``POST /tokenize`` and ``POST /detokenize``."""

from __future__ import annotations

from cacheir_server.schemas.chat import Message
from cacheir_server.schemas.field import Body, honoured


class TokenizeBody(Body):
    """A text, or messages."""

    model: str | None = honoured(None, max_length=10_000)
    prompt: str | None = honoured(None)
    messages: list[Message] | None = honoured(None, min_length=1)
    add_generation_prompt: bool | None = honoured(None)


class DetokenizeBody(Body):
    """Token ids."""

    model: str | None = honoured(None, max_length=10_000)
    tokens: list[int] = honoured(..., max_length=1_000_000)
