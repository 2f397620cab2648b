"""``POST /v1/responses``: OpenAI's newer way to ask, without what a server would have to store."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from cacheir_server.schemas.field import CONTRACT, Body, honoured, ignored
from cacheir_server.schemas.sampled import CacheIRPart


class InputText(Body):
    """A part of an item's content."""

    type: Literal["input_text", "output_text", "text"] = honoured(...)
    text: str = honoured(...)
    annotations: list[Any] | None = ignored("Annotations of an earlier answer.")
    logprobs: list[Any] | None = ignored("Logprobs of an earlier answer.")


class InputItem(Body):
    """A message of the input; earlier answers may be given back as they came."""

    type: Literal["message"] | None = honoured(None)
    id: str | None = ignored("Nothing is stored.")
    status: str | None = ignored("Nothing is stored.")
    role: Literal["user", "assistant", "system", "developer"] = honoured(...)
    content: str | list[InputText] = honoured(...)


class TextFormat(Body):
    """``text``, any JSON object, or JSON by ``schema``."""

    type: Literal["text", "json_object", "json_schema"] = honoured(...)
    name: str | None = ignored("A label for the client.")
    description: str | None = ignored("A label for the client.")
    strict: bool | None = ignored("A schema is always enforced in full, or refused.")
    schema_: dict[str, Any] | None = Field(None, alias="schema", json_schema_extra={CONTRACT: "honoured"})


class TextPart(Body):
    """The form of the text."""

    format: TextFormat | None = honoured(None)


class ResponseBody(Body):
    """OpenAI's responses request. Nothing is stored, so an earlier response cannot be named."""

    model: str = honoured(..., max_length=10_000)
    input: str | list[InputItem] = honoured(...)
    instructions: str | None = honoured(None, "Goes first, as a system message.")
    max_output_tokens: int | None = honoured(None, ge=1)
    temperature: float | None = honoured(None, ge=0, le=100)
    top_p: float | None = honoured(None, gt=0, le=1)
    text: TextPart | None = honoured(None)
    stream: bool | None = honoured(None)
    cacheir: CacheIRPart | None = honoured(None)
    store: bool | None = ignored("Nothing is stored.")
    metadata: dict[str, Any] | None = honoured(None, "Given back as it came.")
    user: str | None = ignored("The server keeps no record of users.")
    safety_identifier: str | None = ignored("The server keeps no record of users.")
    service_tier: str | None = ignored("There is one.")
    truncation: Literal["disabled"] | None = honoured(None)
