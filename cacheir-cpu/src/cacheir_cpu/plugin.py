"""What cacheir-cpu adds to CacheIR."""

from __future__ import annotations

from cacheir.plugins import PluginInfo, hookimpl


@hookimpl
def cacheir_plugin_info() -> PluginInfo:
    """Say who this is."""
    return PluginInfo(title="CacheIR NumPy backend", summary="Runs every program on NumPy.")
