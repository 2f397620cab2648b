"""What cacheir-importers adds to CacheIR."""

from __future__ import annotations

from cacheir.plugins import PluginInfo, hookimpl


@hookimpl
def cacheir_plugin_info() -> PluginInfo:
    """Say who this is."""
    return PluginInfo(title="CacheIR importers", summary="Reads Hugging Face folders and GGUF files.")
