"""Everything a plugin can do to CacheIR, in one file.

Three families, told apart by their names:

* ``cacheir_plugin_info`` and ``cacheir_register_*`` return data. Called at most once per process, the first time
  somebody needs that kind of thing. Each plugin is asked on its own; one that raises is reported and the others still
  count. They take no arguments, so they can be called in a test.
* ``cacheir_select_*`` decide. Called in plugin order until one returns something other than None.
* ``cacheir_*_done`` and ``cacheir_pass_starting`` observe. All are called; the return value is ignored, and one that
  raises is reported and passed over.

An implementation takes the arguments it needs, by name, and leaves out the rest; a later version of this file may add
arguments. Removing or renaming one raises the major number of ``HOOK_API``. Each hook carries a level: a *stable* one
changes only with a new major number, a *provisional* one may change with a minor number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from cacheir.plugins.markers import PROVISIONAL, STABLE, hook

if TYPE_CHECKING:
    from pathlib import Path

    from cacheir.ir.graph import Graph, Op
    from cacheir.ir.opdef import OpDef
    from cacheir.plugins import specs
    from cacheir.runtime.stats import GenerationStats


# --- register: who you are ---------------------------------------------------------------------


@hook(level=STABLE)
def cacheir_plugin_info() -> specs.PluginInfo:  # type: ignore[empty-body]
    """Return the title, summary and homepage that ``cacheir plugins list`` shows.

    Optional. Without it the distribution's own metadata is shown.
    """


# --- register: the compiler ---------------------------------------------------------------------


@hook(level=STABLE)
def cacheir_register_ops() -> Iterable[OpDef]:  # type: ignore[empty-body]
    """Return the ops this plugin adds to the IR.

    An op is its signature, its attributes, a rule that computes result types from operand types (the verifier calls
    it), and its meaning: a decomposition into other ops, or a NumPy reference kernel. Every kernel for the op is
    tested against that meaning. Import ``cacheir.ir`` inside the hook, so that loading the plugin stays cheap.
    """


@hook(level=STABLE)
def cacheir_register_passes() -> Iterable[specs.PassSpec]:  # type: ignore[empty-body]
    """Return graph passes.

    A pass is a pure function ``(Graph, PassContext) -> Graph``. It must return its argument unchanged (the same
    object) when it has nothing to do, must not keep state between calls, and must leave the graph in a state the
    verifier accepts: the pass manager verifies after each pass. Order is declared with ``after``, ``before`` and
    ``requires``, never by load order.
    """


@hook(level=STABLE)
def cacheir_register_importers() -> Iterable[specs.ImporterSpec]:  # type: ignore[empty-body]
    """Return importers: functions from a path to a model as data, with weights by reference.

    An importer must not read weight data: it records where each tensor lies.
    """


@hook(level=STABLE)
def cacheir_register_families() -> Iterable[specs.FamilySpec]:  # type: ignore[empty-body]
    """Return model families: how a configuration becomes a ``DecoderSpec``, and what the tensors are called.

    The importers find a family by the architecture that the model names. Two families must not claim one architecture.
    """


@hook(level=STABLE)
def cacheir_register_models() -> Iterable[specs.ModelSpec]:  # type: ignore[empty-body]
    """Return named models that come with installed distributions, so that ``cacheir run NAME`` finds them."""


@hook(level=STABLE)
def cacheir_register_exporters() -> Iterable[specs.ExporterSpec]:  # type: ignore[empty-body]
    """Return exporters: functions that write one graph as text, for people or for other tools."""


@hook(level=STABLE)
def cacheir_register_quant_formats() -> Iterable[specs.QuantFormatSpec]:  # type: ignore[empty-body]
    """Return block formats of quantised storage; a ``QuantType`` names one."""


@hook(level=STABLE)
def cacheir_register_unpackers() -> Iterable[specs.UnpackerSpec]:  # type: ignore[empty-body]
    """Return unpackers: how a dense weight is made of the tensors that a model stores for it (AWQ, GPTQ, a zip)."""


@hook(level=STABLE)
def cacheir_register_quantizers() -> Iterable[specs.QuantSpec]:  # type: ignore[empty-body]
    """Return quantisers: methods that pick a storage format for each weight. ``--quant NAME`` finds them by name."""


@hook(level=PROVISIONAL)
def cacheir_register_kernels() -> Iterable[specs.KernelSpec]:  # type: ignore[empty-body]
    """Return kernels, each for one op on one target.

    A kernel says what it cannot do by returning a reason from ``refuses``. The reasons are kept and shown, so write
    them for the reader: "head_dim 80 is not a multiple of 16", not "unsupported".
    """


@hook(level=PROVISIONAL, firstresult=True)
def cacheir_select_kernel(
    op: Op, candidates: Sequence[specs.KernelSpec], target: str, mode: str
) -> specs.KernelChoice | None:
    """Choose among the kernels that accept ``op``, or return None to leave the choice to others.

    ``candidates`` is never empty and is sorted best rank first; the default choice, when every plugin returns None,
    is ``candidates[0]``. Use this to put measured timings or a tuning file in charge. The choice must be one of the
    candidates, and its ``reason`` goes into the schedule.
    """


# --- register: the runtime ----------------------------------------------------------------------


@hook(level=PROVISIONAL)
def cacheir_register_backends() -> Iterable[specs.BackendSpec]:  # type: ignore[empty-body]
    """Return backends, which own device memory and run programs.

    ``probe`` is called to say whether the backend can work here; it must be quick and must not import torch. A
    backend whose probe gives a reason stays listed, with that reason.
    """


@hook(level=STABLE)
def cacheir_register_samplers() -> Iterable[specs.SamplerSpec]:  # type: ignore[empty-body]
    """Return samplers: from logits f32 [B, V] to one token id for each row."""


@hook(level=STABLE)
def cacheir_register_tokenizers() -> Iterable[specs.TokenizerSpec]:  # type: ignore[empty-body]
    """Return tokenizer kinds: from an importer's ``TokenizerSource`` to a ``Tokenizer``."""


@hook(level=PROVISIONAL)
def cacheir_register_policies() -> Iterable[specs.PolicySpec]:  # type: ignore[empty-body]
    """Return scheduling policies: which request goes next. They see immutable views, never the allocator."""


@hook(level=PROVISIONAL)
def cacheir_register_logits_processors() -> Iterable[specs.LogitsProcessorSpec]:  # type: ignore[empty-body]
    """Return logits processors: changes of a row's logits on the host, before sampling."""


@hook(level=PROVISIONAL)
def cacheir_register_grammars() -> Iterable[specs.GrammarSpec]:  # type: ignore[empty-body]
    """Return grammar languages that a request's output can be held to."""


@hook(level=PROVISIONAL)
def cacheir_register_tool_parsers() -> Iterable[specs.ToolParserSpec]:  # type: ignore[empty-body]
    """Return readers of tool calls in a model's output."""


# --- register: the surfaces ---------------------------------------------------------------------


@hook(level=STABLE)
def cacheir_register_commands() -> Iterable[specs.CommandSpec]:  # type: ignore[empty-body]
    """Return subcommands of ``cacheir``. Name and help are data; the app is imported when it is run."""


@hook(level=PROVISIONAL)
def cacheir_register_routes() -> Iterable[specs.RouteSpec]:  # type: ignore[empty-body]
    """Return HTTP routes for ``cacheir serve``. Handlers see plain requests and the engine, no web framework."""


@hook(level=STABLE)
def cacheir_register_checks() -> Iterable[specs.CheckSpec]:  # type: ignore[empty-body]
    """Return checks for ``cacheir plugins doctor``: a driver version, a missing compiler, a CPU feature."""


@hook(level=PROVISIONAL)
def cacheir_register_benchmarks() -> Iterable[specs.BenchmarkSpec]:  # type: ignore[empty-body]
    """Return suites of ``cacheir benchmark --suite NAME``."""


@hook(level=PROVISIONAL)
def cacheir_register_peers() -> Iterable[specs.PeerSpec]:  # type: ignore[empty-body]
    """Return other systems that a benchmark can be run against."""


# --- observe ------------------------------------------------------------------------------------


@hook(level=STABLE)
def cacheir_pass_starting(spec: specs.PassSpec, graph: Graph, mode: str) -> None:
    """Called before each pass that is about to run."""


@hook(level=STABLE)
def cacheir_pass_done(record: specs.PassRecord, graph: Graph) -> None:
    """Called after each pass, with its record (diff, hashes, seconds) and the graph it returned."""


@hook(level=STABLE)
def cacheir_compile_done(artifact: Path, records: Sequence[specs.PassRecord]) -> None:
    """Called once an artifact directory is complete on disk."""


@hook(level=PROVISIONAL)
def cacheir_request_done(stats: GenerationStats) -> None:
    """Called when an answer ends: finished, given up or failed (``finish_reason`` "" then). Must not block."""
