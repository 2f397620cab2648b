"""What plugin authors import: the mark for hooks, the version of the hook API, and the records.

Each is imported on first use, so that ``cacheir --help``, which needs none of them, does not wait for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cacheir.plugins.markers import HOOK_API, hookimpl
    from cacheir.plugins.ref import Lazy, resolve
    from cacheir.plugins.specs import (
        BackendSpec,
        BenchmarkSpec,
        CheckResult,
        CheckSpec,
        CommandSpec,
        ExporterSpec,
        FamilySpec,
        GrammarSpec,
        ImporterSpec,
        KernelChoice,
        KernelSpec,
        LogitsProcessorSpec,
        ModelSpec,
        PassRecord,
        PassSpec,
        PeerSpec,
        PluginInfo,
        PolicySpec,
        QuantFormatSpec,
        QuantSpec,
        RouteSpec,
        SamplerSpec,
        Stage,
        TokenizerSpec,
        ToolParserSpec,
        UnpackerSpec,
    )

__all__ = [
    "HOOK_API",
    "BackendSpec",
    "BenchmarkSpec",
    "CheckResult",
    "CheckSpec",
    "CommandSpec",
    "ExporterSpec",
    "FamilySpec",
    "GrammarSpec",
    "ImporterSpec",
    "KernelChoice",
    "KernelSpec",
    "Lazy",
    "LogitsProcessorSpec",
    "ModelSpec",
    "PassRecord",
    "PassSpec",
    "PeerSpec",
    "PluginInfo",
    "PolicySpec",
    "QuantFormatSpec",
    "QuantSpec",
    "RouteSpec",
    "SamplerSpec",
    "Stage",
    "TokenizerSpec",
    "ToolParserSpec",
    "UnpackerSpec",
    "hookimpl",
    "resolve",
]

_PLACES = {
    "HOOK_API": "cacheir.plugins.markers",
    "hookimpl": "cacheir.plugins.markers",
    "Lazy": "cacheir.plugins.ref",
    "resolve": "cacheir.plugins.ref",
}


def __getattr__(name: str) -> Any:
    """Import what is named on first use (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module 'cacheir.plugins' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_PLACES.get(name, "cacheir.plugins.specs")), name)
    return value
