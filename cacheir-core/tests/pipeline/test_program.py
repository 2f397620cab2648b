"""The whole pipeline: stages in order, records of everything, determinism, and numbers after each single pass."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cacheir.errors import PassBrokeGraph, PassFailed, PassOrderError, UsageError, VerifyError
from cacheir.ir.graph import Graph, Module
from cacheir.ops.table import core_ops
from cacheir.passes.table import core_passes
from cacheir.pipeline.context import PassContext
from cacheir.pipeline.program import PipelineOptions, PipelineResult, pipeline_order, run_pipeline
from cacheir.plugins.specs import PassRecord, PassSpec, Stage
from cacheir.testing.random_runs import differences
from cacheir.testing.tiny_decoders import LIMITS, tiny_decoders

OPS = core_ops()
NAMES = sorted(tiny_decoders())


def contributions(*more: PassSpec) -> list[Any]:
    core = [SimpleNamespace(spec=spec, plugin=SimpleNamespace(name="core")) for spec in core_passes().values()]
    return core + [SimpleNamespace(spec=spec, plugin=SimpleNamespace(name="other")) for spec in more]


def run(
    name: str = "grouped", *more: PassSpec, trace: Any = None, observe: Any = None, **options: Any
) -> PipelineResult:
    decoder = tiny_decoders()[name]
    return run_pipeline(
        decoder.logical(OPS),
        contributions(*more),
        ops=OPS,
        spec=decoder.spec,
        options=PipelineOptions(target="cpu.numpy", limits=LIMITS, check_text=True, **options),
        trace=trace,
        observe=observe,
    )


def test_a_layer_ends_up_as_a_few_fused_ops() -> None:
    result = run()
    for mode in ("prefill", "decode"):
        assert [op.name for op in result.modules[mode].graph("decoder_layer").ops] == [
            "fused_rmsnorm_qkv_rope",
            "kv_append",
            f"paged_attention_{mode}",
            "reshape",
            "linear",
            "add_rms_norm",
            "fused_swiglu",
            "linear",
            "add",
        ]
        main = result.modules[mode].main
        assert [op.name for op in main.ops] == ["embedding", "rope_table", "call", "call", "gather_rows", "rms_norm"]
        assert main.outputs[0].name == "rows"
        assert [op.name for op in result.modules[mode].graph("head.greedy").ops] == ["head_argmax"]


@pytest.mark.parametrize("name", NAMES)
def test_each_single_pass_leaves_every_number_alone(name: str) -> None:
    """The pipeline's own steps one by one, in each mode, on every graph that a pass changed."""
    seen: set[tuple[str, str]] = set()

    def trace(record: PassRecord, before: Module, after: Module) -> None:
        if record.outcome == "changed" and record.stage is not Stage.PROGRAM:
            seen.add((record.name, record.mode))
            # Main runs the layers too, so one look at a changed layer is one at the whole forward pass.
            graph = record.graph if record.graph.startswith("head.") else "main"
            assert differences(before, after, graph, OPS, seed=len(seen)) == [], record.name

    run(name, trace=trace, requests=("fuse-norm-swiglu",))
    logical = {"fuse-qkv", "fuse-norm-qkv-rope", "fuse-swiglu"}
    each_mode = {"gather-last-rows", "fuse-head-argmax", "fuse-add-norm"}
    assert seen >= {(p, "") for p in logical} | {(p, mode) for p in each_mode for mode in ("prefill", "decode")}


@pytest.mark.parametrize("skipped", sorted(core_passes()))
def test_any_pass_can_be_left_out(skipped: str) -> None:
    result = run("two-classes-window", skips=(skipped.replace("-", "_"),))
    assert skipped not in {record.name for record in result.records}
    whole = run("two-classes-window")
    for mode, module in result.modules.items():
        joined = replace(whole.modules[mode], mode=mode)
        assert differences(module, joined, "main", OPS) == []
        assert differences(module, joined, "head.greedy", OPS) == []


def test_off_for_a_target_that_adds_the_residual_itself() -> None:
    result = run(requests=("fuse-add-norm{residual-epilogue=true}", "fuse-norm-swiglu"))
    names = [op.name for op in result.modules["decode"].graph("decoder_layer").ops]
    assert "add_rms_norm" not in names and "fused_rmsnorm_swiglu" in names
    notes = {note for record in result.records if record.name == "fuse-add-norm" for note in record.notes}
    assert notes == {"off: projections of this target add the residual in their epilogue"}


def test_records_tell_everything_in_order() -> None:
    result = run()
    stages = [record.stage for record in result.records]
    assert stages.index(Stage.PROGRAM) > max(i for i, stage in enumerate(stages) if stage is Stage.LOGICAL)
    assert {record.mode for record in result.records if record.stage is not Stage.LOGICAL} == {"prefill", "decode"}
    (step,) = [r for r in result.records if r.stage is Stage.PROGRAM and r.mode == "decode"]
    assert step.name == "prefill-decode-specialization" and step.graph == ""
    assert "+  state %kv: kv<layers=2, heads=2, head_dim=8, f32>" in step.diff
    assert step.counts["kv_append"] == 1 and step.counts["grouped_query_attention"] == -1
    assert step.notes == ("KV group 0: layers 0-1; kv<layers=2, heads=2, head_dim=8, f32>",)
    passes = [place.name for place in result.order if place.chosen is not None]
    for record in result.records:
        assert record.name in passes or record is step or record.stage is Stage.PROGRAM
        assert (record.outcome == "changed") == bool(record.diff)
    idle = [r for r in result.records if r.outcome == "unchanged"]
    assert idle and all(record.notes for record in idle), "a pass that found nothing says why"
    assert [site.number for site in result.sites] == list(range(1, len(result.sites) + 1))


def test_the_same_run_twice_gives_the_same_text_and_records() -> None:
    first, second = run("quantised"), run("quantised")
    assert {mode: str(module) for mode, module in first.modules.items()} == {
        mode: str(module) for mode, module in second.modules.items()
    }
    assert [replace(r, seconds=0.0) for r in first.records] == [replace(r, seconds=0.0) for r in second.records]


def test_a_limit_of_rewrites_gives_valid_programs_all_the_way() -> None:
    total = len(run("grouped").sites)
    reference = run("grouped", rewrite_limit=0)
    assert not reference.sites
    for limit in range(1, total + 1):
        result = run("grouped", rewrite_limit=limit)
        assert len(result.sites) == limit
        changed = replace(result.modules["decode"], mode="decode")
        assert differences(reference.modules["decode"], changed, "main", OPS, seed=limit) == []


def test_observers_are_told_of_each_run() -> None:
    seen: list[tuple[str, Any]] = []
    result = run(observe=lambda hook, **arguments: seen.append((hook, arguments)))
    done = [arguments["record"] for hook, arguments in seen if hook == "cacheir_pass_done"]
    assert done == [r for r in result.records if r.stage is not Stage.PROGRAM]
    assert len(seen) == 2 * len(done)


def observed_contexts(stage: Stage) -> list[PassContext]:
    contexts: list[PassContext] = []

    def look(graph: Graph, context: PassContext) -> Graph:
        contexts.append(context)
        return graph

    run("grouped", PassSpec(name="look", run=look, stage=stage, summary="Looks."), quant="int4-g32")
    return contexts


def test_a_stage_knows_only_what_it_may_know() -> None:
    knows = {
        stage: {(c.mode, c.target, c.quant) for c in observed_contexts(stage)}
        for stage in (Stage.LOGICAL, Stage.MODE, Stage.TARGET)
    }
    assert knows[Stage.LOGICAL] == {("", "", "")}
    assert knows[Stage.MODE] == {("prefill", "", ""), ("decode", "", "")}
    assert knows[Stage.TARGET] == {("prefill", "cpu.numpy", "int4-g32"), ("decode", "cpu.numpy", "int4-g32")}
    assert all(
        context.spec is not None and context.spec.label == "TinyDecoder" for context in observed_contexts(Stage.MODE)
    )


def test_a_module_that_is_wrong_to_begin_with_is_the_callers_fault() -> None:
    decoder = tiny_decoders()["grouped"]
    module = decoder.logical(OPS)
    broken = module.replacing(module.main.with_ops(module.main.ops[1:]))
    with pytest.raises(VerifyError):
        run_pipeline(broken, contributions(), ops=OPS)


def test_a_logical_pass_that_takes_attention_away_is_caught() -> None:
    def swap(graph: Graph, context: PassContext) -> Graph:
        return context.rewrite(
            graph, lambda op, rewriter: [op.operands[0]] if op.name == "grouped_query_attention" else None
        )

    with pytest.raises(PassFailed, match="no keys would be cached"):
        run("grouped", PassSpec(name="swap", run=swap, stage=Stage.LOGICAL, summary="Breaks attention."))


def test_a_failing_plugin_pass_is_named_with_its_plugin_and_mode() -> None:
    def fail(graph: Graph, context: PassContext) -> Graph:
        raise ValueError("odd")

    with pytest.raises(PassFailed, match=r"pass 'fail' \(plugin 'other'\) on @main of prefill raised ValueError: odd"):
        run("grouped", PassSpec(name="fail", run=fail, stage=Stage.MODE, summary="Fails."))


def test_attention_left_over_is_refused_in_mode_stage() -> None:
    def undo(graph: Graph, context: PassContext) -> Graph:
        ops = [replace(op, name="grouped_query_attention") if op.name.startswith("paged") else op for op in graph.ops]
        return graph if tuple(ops) == graph.ops else graph.with_ops(ops)

    with pytest.raises(PassBrokeGraph, match="belongs to the logical stage"):
        run("grouped", PassSpec(name="undo", run=undo, stage=Stage.MODE, summary="Undoes."))


def test_a_requirement_that_was_left_out_is_explained() -> None:
    needy = PassSpec(name="needy", run="x:y", stage=Stage.LOGICAL, summary="Needs.", requires=("fuse-qkv",))
    with pytest.raises(PassOrderError, match="'needy' requires 'fuse-qkv'") as caught:
        pipeline_order(contributions(needy), PipelineOptions(skips=("fuse-qkv",)))
    assert caught.value.hint == "it is in plugin 'core' but left out; drop --skip-pass fuse-qkv"
    needy = replace(needy, requires=("fuse-norm-swiglu",), stage=Stage.TARGET)
    with pytest.raises(PassOrderError) as caught:
        pipeline_order(contributions(needy), PipelineOptions())
    assert caught.value.hint == "it is in plugin 'core'; ask for it with --pass fuse-norm-swiglu"


def test_the_specification_s_spelling_of_the_step_is_found() -> None:
    with pytest.raises(UsageError, match="'prefill-decode-specialization' is a step"):
        pipeline_order(contributions(), PipelineOptions(skips=("prefill_decode_specialization",)))
