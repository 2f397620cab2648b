"""The tools of one chat request: what the template is told, how calls are read, and how a call is demanded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cacheir.errors import CacheIRError, PluginError
from cacheir.plugins.installation import default
from cacheir.plugins.ref import resolve
from cacheir_server.errors import ApiError
from cacheir_server.grammars.schema_keywords import check_keywords
from cacheir_server.schemas.chat import ChatBody
from cacheir_server.schemas.tools import NamedTool
from cacheir_server.service import Service
from cacheir_server.tools.formats import BY_TEMPLATE, FORMATS, CallFormat, ToolParser


@dataclass(frozen=True, kw_only=True)
class Calling:
    """``tools`` go to the template, () for none; ``parser`` names how calls are read, "" for not at all.

    ``demand`` is a Lark grammar that holds the answer to a call, "" where none is demanded.
    """

    tools: tuple[dict[str, Any], ...] = ()
    parser: str = ""
    demand: str = ""

    def new_parser(self) -> ToolParser | None:
        """A parser for one answer."""
        if not self.parser:
            return None
        spec = default().tool_parsers[self.parser]
        try:
            made: ToolParser = resolve(spec.factory)()
        except CacheIRError:
            raise
        except Exception as error:
            raise PluginError(f"tool parser {spec.name!r} raised {type(error).__name__}: {error}") from error
        return made


def calling_of(service: Service, body: ChatBody) -> Calling:
    """What ``body`` asks for; ``ApiError`` 400 for tools that the model cannot be told of, or cannot be held to."""
    choice = body.tool_choice
    if not body.tools:
        if choice not in (None, "none", "auto"):
            raise ApiError(400, "tool_choice needs tools", param="tool_choice", code="invalid_value")
        return Calling()
    if choice == "none":
        return Calling()
    template = service.runtime.model.generation.chat_template or ""
    if "tools" not in template:
        raise ApiError(400, "this model's chat template knows no tools", param="tools", code="unsupported_field")
    parser = service.settings.tool_parser or next((name for mark, name in BY_TEMPLATE if mark in template), "")
    if not parser:
        message = "this model's format of calls is not known; serve it with --tool-parser"
        raise ApiError(400, message, param="tools", code="unsupported_field")
    tools = tuple(tool.model_dump(exclude_none=True, exclude={"function": {"strict"}}) for tool in body.tools)
    names = [tool.function.name for tool in body.tools]
    if isinstance(choice, NamedTool):
        if choice.function.name not in names:
            message = f"tool_choice names {choice.function.name!r}, which is none of the tools"
            raise ApiError(400, message, param="tool_choice", code="invalid_value")
        names = [choice.function.name]
    if choice in (None, "auto"):
        return Calling(tools=tools, parser=parser)
    if parser not in FORMATS:
        message = f"calls of the parser {parser!r} cannot be demanded, only read"
        raise ApiError(400, message, param="tool_choice", code="unsupported_field")
    demanded = [tool["function"] for tool in tools if tool["function"]["name"] in names]
    return Calling(tools=tools, parser=parser, demand=_grammar(FORMATS[parser], demanded))


def _grammar(form: CallFormat, functions: Sequence[dict[str, Any]]) -> str:
    """A grammar of one call of one of ``functions``."""
    schemas = []
    for number, function in enumerate(functions):
        parameters = function.get("parameters") or {"type": "object"}
        try:
            check_keywords(parameters)
        except CacheIRError as error:
            message = f"the parameters of {function['name']!r} cannot be enforced: {error}"
            raise ApiError(400, message, param=f"tools.{number}.function.parameters", code="invalid_value") from None
        schemas.append(
            {
                "type": "object",
                "properties": {"name": {"const": function["name"]}, form.arguments: parameters},
                "required": ["name", form.arguments],
                "additionalProperties": False,
            }
        )
    schema = json.dumps(schemas[0] if len(schemas) == 1 else {"anyOf": schemas})
    opening, closing = ("[", "]") if form.many else ("", "")
    line = "\\n" if form.end and not form.many else ""
    parts = [_literal(form.begin + line + opening), "call", _literal(closing + line + form.end)]
    return f"start: {' '.join(part for part in parts if part)}\ncall: %json {schema}\n"


def _literal(text: str) -> str:
    """``text`` as a string of the grammar's notation; "\\n" in it is a line break already."""
    return f'"{text}"' if text else ""
