"""What cacheir-server adds to CacheIR: the command ``serve``, grammars, tool formats and the suite ``serve``."""

from __future__ import annotations

from collections.abc import Iterator

from cacheir.plugins import BenchmarkSpec, CommandSpec, GrammarSpec, PluginInfo, ToolParserSpec, hookimpl


@hookimpl
def cacheir_plugin_info() -> PluginInfo:
    """Say who this is."""
    return PluginInfo(title="CacheIR server", summary="An OpenAI-compatible HTTP server over the engine.")


@hookimpl
def cacheir_register_commands() -> Iterator[CommandSpec]:
    """``cacheir serve``."""
    yield CommandSpec(
        name="serve", help="Serve a model over HTTP, as OpenAI's API has it.", app="cacheir_server.command:app"
    )


# name, summary, function of grammars/guidance.py
_GRAMMARS = (
    ("json-schema", "JSON that is valid by a schema.", "json_schema"),
    ("json-object", "Any JSON object.", "json_object"),
    ("regex", "Text that a regular expression matches.", "regex"),
    ("lark", "Text of a context-free grammar in Lark's notation.", "lark"),
    ("choice", "One of several texts.", "choice"),
)


@hookimpl
def cacheir_register_grammars() -> Iterator[GrammarSpec]:
    """The languages that llguidance enforces."""
    for name, summary, function in _GRAMMARS:
        yield GrammarSpec(name=name, summary=summary, compile=f"cacheir_server.grammars.guidance:{function}")


# name, summary; functions of tools/formats.py
_TOOL_PARSERS = (
    ("hermes", "Calls between <tool_call> and </tool_call>: Qwen, SmolLM3, Hermes."),
    ("llama3", "The text is a call: Llama 3."),
    ("mistral", "A list behind [TOOL_CALLS]: Mistral."),
    ("granite", "A list behind <|tool_call|>: Granite."),
    ("phi", "A list between <|tool_call|> and <|/tool_call|>: Phi."),
)


@hookimpl
def cacheir_register_tool_parsers() -> Iterator[ToolParserSpec]:
    """The families' formats of tool calls."""
    for name, summary in _TOOL_PARSERS:
        yield ToolParserSpec(name=name, summary=summary, factory=f"cacheir_server.tools.formats:{name}")


@hookimpl
def cacheir_register_benchmarks() -> Iterator[BenchmarkSpec]:
    """Load on a server."""
    yield BenchmarkSpec(
        name="serve",
        summary="Open-loop load with Poisson arrivals on any server that speaks OpenAI's API.",
        run="cacheir_server.bench.suite:run",
    )
