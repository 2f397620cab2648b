"""The fields that hold an answer to a form: OpenAI's ``response_format`` and vLLM's ``structured_outputs``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field

from cacheir_server.schemas.field import CONTRACT, Body, honoured, ignored


class JsonSchema(Body):
    """OpenAI's wrapper of a schema. Schemas are always enforced in full, so ``strict`` changes nothing."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)

    name: str | None = ignored("A label for the client.")
    description: str | None = ignored("A label for the client.")
    strict: bool | None = ignored("A schema is always enforced in full, or refused.")
    schema_: dict[str, Any] | bool = Field(
        ..., alias="schema", description="The schema.", json_schema_extra={CONTRACT: "honoured"}
    )


class ResponseFormat(Body):
    """``text``, any JSON object, or JSON by a schema."""

    type: Literal["text", "json_object", "json_schema"] = honoured(...)
    json_schema: JsonSchema | None = honoured(None)


class StructuredOutputs(Body):
    """One of these."""

    json_: dict[str, Any] | bool | str | None = Field(
        None, alias="json", description="A JSON schema.", json_schema_extra={CONTRACT: "honoured"}
    )
    json_object: bool | None = honoured(None)
    regex: str | None = honoured(None)
    choice: list[str] | None = honoured(None)
    grammar: str | None = honoured(None, "A grammar in Lark's notation.")
