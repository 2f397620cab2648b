"""The records a plugin hands over, all in one place to import from; each is defined with its subject.

All are frozen, keyword-only and checked when made, and none imports anything heavy. ``OpDef`` lives with the IR, in
``cacheir.ir.opdef``.
"""

from __future__ import annotations

from cacheir.plugins.compiler_records import (
    ExporterSpec,
    KernelChoice,
    KernelSpec,
    PassRecord,
    PassSpec,
    QuantFormatSpec,
    QuantSpec,
    Stage,
    UnpackerSpec,
)
from cacheir.plugins.model_records import FamilySpec, ImporterSpec, ModelSpec, TokenizerSpec
from cacheir.plugins.runtime_records import (
    BackendSpec,
    GrammarSpec,
    LogitsProcessorSpec,
    PolicySpec,
    SamplerSpec,
    ToolParserSpec,
)
from cacheir.plugins.surface_records import (
    BenchmarkSpec,
    CheckResult,
    CheckSpec,
    CommandSpec,
    PeerSpec,
    PluginInfo,
    RouteSpec,
)

__all__ = [
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
]
