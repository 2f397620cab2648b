"""From the fields that ask for a form to the stages that hold an answer to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from cacheir.plugins.installation import default
from cacheir.runtime.grammar import open_grammar
from cacheir.runtime.host_sampling import LogitsStage
from cacheir_server.errors import ApiError, api_error
from cacheir_server.schemas.structured import ResponseFormat, StructuredOutputs
from cacheir_server.service import Service

MakeStages = Callable[[], tuple[LogitsStage, ...]]


def no_stages() -> tuple[LogitsStage, ...]:
    """For an answer of any form."""
    return ()


async def stages_for(
    service: Service,
    response_format: ResponseFormat | None,
    structured: StructuredOutputs | None,
    call: str = "",
) -> MakeStages:
    """A maker of the stages of one answer; ``ApiError`` 400 for a form that cannot be enforced in full.

    ``call`` is the grammar of a tool call that is demanded, "" for none.
    """
    field, wanted = _wanted(response_format, structured, call)
    if wanted is None:
        return no_stages
    language, text = wanted
    model = service.runtime.model

    def compile_it() -> Callable[[], LogitsStage]:
        return open_grammar(
            language,
            text,
            model.tokenizer,
            vocab_size=model.limits.vocab_size,
            eos_ids=model.limits.eos_ids,
            installation=default(),
        )

    try:
        make = await asyncio.to_thread(compile_it)
    except Exception as error:
        raise api_error(error, param=field) from error
    return lambda: (make(),)


def _wanted(
    response_format: ResponseFormat | None, structured: StructuredOutputs | None, call: str
) -> tuple[str, tuple[str, str] | None]:
    """The field that asks, and the language and text of what it asks for."""
    found: list[tuple[str, tuple[str, str]]] = []
    if response_format is not None and response_format.type != "text":
        if response_format.type == "json_object":
            found.append(("response_format", ("json-object", "")))
        elif response_format.json_schema is None:
            message = "response_format of type json_schema needs a json_schema"
            raise ApiError(400, message, param="response_format.json_schema", code="invalid_value")
        else:
            found.append(("response_format", ("json-schema", json.dumps(response_format.json_schema.schema_))))
    if structured is not None:
        found += [("structured_outputs", pair) for pair in _structured(structured)]
    if call:
        found.append(("tool_choice", ("lark", call)))
    if len(found) > 1:
        raise ApiError(400, "only one form can be asked for", param=found[-1][0], code="invalid_value")
    return found[0] if found else ("", None)


def _structured(asked: StructuredOutputs) -> list[tuple[str, str]]:
    found: list[tuple[str, Any]] = []
    if asked.json_ is not None:
        found.append(("json-schema", asked.json_ if isinstance(asked.json_, str) else json.dumps(asked.json_)))
    if asked.json_object:
        found.append(("json-object", ""))
    if asked.regex is not None:
        found.append(("regex", asked.regex))
    if asked.choice is not None:
        found.append(("choice", json.dumps(asked.choice)))
    if asked.grammar is not None:
        found.append(("lark", asked.grammar))
    return found
