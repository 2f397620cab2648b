"""What cacheir-server adds to CacheIR: its name; this version has no command and no routes."""

from __future__ import annotations

from cacheir.plugins import PluginInfo, hookimpl


@hookimpl
def cacheir_plugin_info() -> PluginInfo:
    """Say who this is."""
    return PluginInfo(
        title="CacheIR server",
        summary="Place of the HTTP server; this version adds no command and no routes.",
    )
