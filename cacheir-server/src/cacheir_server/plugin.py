"""What cacheir-server adds to CacheIR: the command ``serve``."""

from __future__ import annotations

from collections.abc import Iterator

from cacheir.plugins import CommandSpec, GrammarSpec, PluginInfo, hookimpl


@hookimpl
def cacheir_plugin_info() -> PluginInfo:
    """Say who this is."""
    return PluginInfo(title="CacheIR server", summary="An OpenAI-compatible HTTP server over the engine.")


@hookimpl
def cacheir_register_commands() -> Iterator[CommandSpec]:
    """``cacheir serve``."""
    yield CommandSpec(
        name="serve", help="Serve a model over HTTP, as OpenAI's API has it.", app="cacheir_server.command:serve"
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
