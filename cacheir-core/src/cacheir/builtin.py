"""Core's own plugin: its commands, and where its ops, passes, formats and the rest are listed.

Nothing of the compiler is imported before its hook is called: each hook imports the list that it returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from cacheir.plugins.compiler_records import ExporterSpec
from cacheir.plugins.markers import hookimpl
from cacheir.plugins.surface_records import CheckSpec, CommandSpec, PeerSpec, PluginInfo

if TYPE_CHECKING:
    from cacheir.ir.opdef import OpDef
    from cacheir.plugins.compiler_records import PassSpec, QuantFormatSpec, QuantSpec
    from cacheir.plugins.model_records import ImporterSpec

# name, help, app. To add a command, write its file and add its line here.
COMMANDS = (
    ("compile", "Compile a model into an artifact.", "cacheir.cli.compile:app"),
    ("inspect", "Show the graphs, passes, kernels and memory of an artifact or a model.", "cacheir.cli.inspect:app"),
    ("diff", "Compare two artifacts or models: passes, kernels, weights, plugins, sizes.", "cacheir.cli.diff:app"),
    ("bisect", "Find the pass, rewrite or kernel that changes the answer.", "cacheir.cli.bisect:app"),
    ("export", "Write graphs as text, JSON, DOT, MLIR or an HTML page.", "cacheir.cli.export:app"),
    ("view", "Look at a program in the browser.", "cacheir.cli.view:app"),
    ("explain", "Explain a step: kernels and why, bytes, floors, times.", "cacheir.cli.explain:app"),
    ("plan", "Say what a model will take, before it is loaded.", "cacheir.cli.plan:app"),
    ("passes", "List passes and planning steps in the order in which they would run.", "cacheir.cli.passes:app"),
    ("run", "Generate text.", "cacheir.cli.run:app"),
    ("execute", "Run a plain graph (ONNX, StableHLO) on arrays.", "cacheir.cli.execute:app"),
    ("chat", "Talk to a model.", "cacheir.cli.chat:app"),
    ("models", "List the named models that are installed.", "cacheir.cli.models:app"),
    (
        "profile",
        "Show what this machine has: processor, instruction sets, memory, backends.",
        "cacheir.cli.profile:app",
    ),
    ("benchmark", "Time prefill and decode.", "cacheir.cli.benchmark:app"),
    ("plugins", "List, check, explain and start plugins.", "cacheir.cli.plugins:app"),
    ("quantize", "Write a checkpoint of a model with its weights quantised.", "cacheir.cli.quantize:app"),
    ("quality", "Compare the answers of two models: perplexity, divergence, agreement.", "cacheir.cli.quality:app"),
    ("incident", "Keep what a server decided of late, and replay it offline.", "cacheir.cli.incident:app"),
    ("verify", "Check that an artifact is whole and belongs to its model.", "cacheir.cli.verify:app"),
    ("cache", "List and clear what is cached.", "cacheir.cli.cache:app"),
)


@hookimpl
def cacheir_plugin_info() -> PluginInfo:
    """Say who this is."""
    return PluginInfo(title="CacheIR core", summary="The IR, passes, planning, runtime and command line.")


@hookimpl
def cacheir_register_commands() -> Iterator[CommandSpec]:
    """The commands of ``COMMANDS``."""
    for name, text, app in COMMANDS:
        yield CommandSpec(name=name, help=text, app=app, group="CacheIR")


@hookimpl
def cacheir_register_ops() -> Iterable[OpDef]:
    """The ops of the dialects std, nn, kv, quant and fused."""
    from cacheir.ops.table import core_ops

    return core_ops().values()


@hookimpl
def cacheir_register_passes() -> Iterable[PassSpec]:
    """The passes that a decoder needs to run."""
    from cacheir.passes.table import core_passes

    return core_passes().values()


@hookimpl
def cacheir_register_quant_formats() -> Iterable[QuantFormatSpec]:
    """The classic block formats of GGUF files."""
    from cacheir.formats.table import core_formats

    return core_formats().values()


@hookimpl
def cacheir_register_importers() -> Iterator[ImporterSpec]:
    """The reader of checkpoints that ``cacheir quantize`` writes."""
    from cacheir.plugins.model_records import ImporterSpec

    yield ImporterSpec(
        name="cacheir-checkpoint",
        summary="Folders that cacheir quantize writes.",
        run="cacheir.quantisers.checkpoint:import_checkpoint",
        marker_files=("cacheir_checkpoint.json",),
    )


@hookimpl
def cacheir_register_quantizers() -> Iterable[QuantSpec]:
    """One for each of CacheIR's own formats, and those that pick several."""
    from cacheir.quantisers.plans import core_quantizers

    return core_quantizers().values()


@hookimpl
def cacheir_register_exporters() -> Iterator[ExporterSpec]:
    """The text form, its JSON twin, the languages of Graphviz and MLIR, Model Explorer's JSON, and the page."""
    yield ExporterSpec(name="text", summary="The IR's text.", run="cacheir.exporters.text:export_text", suffix=".cir")
    yield ExporterSpec(
        name="json", summary="The IR as JSON.", run="cacheir.exporters.graph_json:export_json", suffix=".json"
    )
    yield ExporterSpec(name="dot", summary="Graphviz.", run="cacheir.exporters.dot:export_dot", suffix=".dot")
    yield ExporterSpec(
        name="mlir",
        summary="All graphs of a mode as MLIR, in its generic form.",
        run="cacheir.exporters.mlir:export_mlir",
        suffix=".mlir",
        takes="module",
    )
    yield ExporterSpec(
        name="html",
        summary="A page with every pass, kernel and buffer, that needs no network.",
        run="cacheir.cli.export_page:export_html",
        suffix=".html",
        takes="artifact",
    )
    yield ExporterSpec(
        name="model-explorer",
        summary="All graphs of a mode as Model Explorer's JSON.",
        run="cacheir.exporters.model_explorer:export_model_explorer",
        suffix=".model-explorer.json",
        takes="module",
    )


@hookimpl
def cacheir_register_checks() -> Iterator[CheckSpec]:
    """What must hold between the plugins that are installed."""
    yield CheckSpec(name="pass-order", run="cacheir.cli.plugin_checks:pass_order")
    yield CheckSpec(name="kernel-ops", run="cacheir.cli.plugin_checks:kernel_ops")
    yield CheckSpec(name="peers", run="cacheir.bench.against.peers:installed_peers")


@hookimpl
def cacheir_register_peers() -> Iterator[PeerSpec]:
    """Engines that ``cacheir benchmark --against`` runs beside ours; none needs to be installed."""
    for name, summary, word in (
        ("llama.cpp", "llama.cpp, through llama-cpp-python; reads GGUF.", "llama_cpp"),
        ("openvino", "OpenVINO GenAI on the CPU; reads GGUF itself.", "openvino"),
        ("onnxruntime-genai", "ONNX Runtime GenAI, on a folder of its model builder.", "onnxruntime_genai"),
        ("vllm", "vLLM's offline engine on a GPU, by whole answers.", "vllm"),
    ):
        where = "cacheir.bench.against.peers"
        yield PeerSpec(name=name, summary=summary, probe=f"{where}:why_no_{word}", run=f"{where}:{word}")
