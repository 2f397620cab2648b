"""What cacheir-server adds to CacheIR: the command ``serve``."""

from __future__ import annotations

from collections.abc import Iterator

from cacheir.plugins import CommandSpec, PluginInfo, hookimpl


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
