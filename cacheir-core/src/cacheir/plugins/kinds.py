"""The kinds of things that plugins register: for each its hook, its record, and the names that one of them claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from cacheir.errors import PluginError
from cacheir.plugins.ref import Lazy, resolve
from cacheir.plugins.specs import (
    BackendSpec,
    BenchmarkSpec,
    CheckSpec,
    CommandSpec,
    ExporterSpec,
    FamilySpec,
    GrammarSpec,
    ImporterSpec,
    KernelSpec,
    LogitsProcessorSpec,
    ModelSpec,
    PassSpec,
    PeerSpec,
    PolicySpec,
    QuantFormatSpec,
    QuantSpec,
    RouteSpec,
    SamplerSpec,
    TokenizerSpec,
    ToolParserSpec,
    UnpackerSpec,
)
from cacheir.quick_dataclass import dataclass


def _own_name(spec: Any) -> Iterable[str]:
    return (spec.name,)


def _name_and_architectures(spec: FamilySpec) -> Iterable[str]:
    yield spec.name
    yield from (f"huggingface:{name}" for name in spec.architectures)
    yield from (f"gguf:{name}" for name in spec.gguf_architectures)


@dataclass(frozen=True)
class Kind:
    """A kind of contribution. ``claims(spec)`` are the names that only one of the kind may have, its own first."""

    name: str  # "pass"
    plural: str  # "passes", also the attribute of an Installation where spaces are "_"
    record: Lazy[type]  # a reference where the class lies in a layer below
    claims: Callable[[Any], Iterable[str]] = _own_name

    @property
    def hook_name(self) -> str:
        """The register hook."""
        return "cacheir_register_" + self.plural.replace(" ", "_")

    @property
    def attribute(self) -> str:
        """The registry's name on an ``Installation``."""
        return self.plural.replace(" ", "_")


KINDS = (
    Kind("op", "ops", "cacheir.ir.opdef:OpDef"),
    Kind("pass", "passes", PassSpec),
    Kind("importer", "importers", ImporterSpec),
    Kind("family", "families", FamilySpec, claims=_name_and_architectures),
    Kind("model", "models", ModelSpec),
    Kind("exporter", "exporters", ExporterSpec),
    Kind("quant format", "quant formats", QuantFormatSpec),
    Kind("unpacker", "unpackers", UnpackerSpec),
    Kind("quantizer", "quantizers", QuantSpec),
    Kind("kernel", "kernels", KernelSpec),
    Kind("backend", "backends", BackendSpec),
    Kind("sampler", "samplers", SamplerSpec),
    Kind("tokenizer", "tokenizers", TokenizerSpec),
    Kind("policy", "policies", PolicySpec),
    Kind("logits processor", "logits processors", LogitsProcessorSpec),
    Kind("grammar", "grammars", GrammarSpec),
    Kind("tool parser", "tool parsers", ToolParserSpec),
    Kind("command", "commands", CommandSpec),
    Kind("route", "routes", RouteSpec),
    Kind("check", "checks", CheckSpec),
    Kind("benchmark", "benchmarks", BenchmarkSpec),
    Kind("peer", "peers", PeerSpec),
)


def check_contribution(hook: str, spec: Any) -> None:
    """Raise ``PluginError`` where ``spec`` is not the record that ``hook`` asks for."""
    kind = next(kind for kind in KINDS if kind.hook_name == hook)
    record = resolve(kind.record)
    if not isinstance(spec, record):
        raise PluginError(f"{hook} gave {type(spec).__name__} where {record.__name__} is asked for")
