"""inline-layers and split-layer: the same numbers, records, and what cannot be."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cacheir.errors import PassOptionError, UsageError
from cacheir.ir.graph import LAYER, Module, Op
from cacheir.ir.parser import parse_module
from cacheir.ir.verify import verify_module
from cacheir.ops.table import core_ops
from cacheir.passes.table import core_passes
from cacheir.pipeline.inline_layers import inline_layers
from cacheir.pipeline.program import PipelineOptions, PipelineResult, pipeline_order, run_pipeline
from cacheir.pipeline.split_layer import SplitLayerOptions, split_layer
from cacheir.plugins.specs import Stage
from cacheir.testing.random_runs import differences
from cacheir.testing.tiny_decoders import LIMITS, tiny_decoders

OPS = core_ops()
PASSES: list[Any] = [SimpleNamespace(spec=spec, plugin=SimpleNamespace(name="core")) for spec in core_passes().values()]


def run(name: str, *requests: str) -> PipelineResult:
    decoder = tiny_decoders()[name]
    options = PipelineOptions(target="cpu.numpy", limits=LIMITS, check_text=True, requests=requests)
    return run_pipeline(decoder.logical(OPS), PASSES, ops=OPS, spec=decoder.spec, options=options)


@pytest.mark.parametrize("name", sorted(tiny_decoders()))
@pytest.mark.parametrize("request_", ["inline-layers", "split-layer{layer=1}"])
def test_the_numbers_of_main_stay(name: str, request_: str) -> None:
    plain, changed = run(name), run(name, request_)
    for mode, module in plain.modules.items():
        for seed in (0, 1):
            assert differences(module, changed.modules[mode], "main", OPS, seed=seed) == []
    assert plain.groups.types == changed.groups.types


def test_inlined_main_calls_nothing_and_names_its_layers() -> None:
    module = run("two-classes-window", "inline-layers").modules["decode"]
    assert module.layers == () and not any(op.callee for op in module.main.ops)
    appends = [op for op in module.main.ops if op.name == "kv_append"]
    assert [op.attr("layer") for op in appends] == [0, 1, 2, 3]
    assert not any(value is LAYER for op in module.main.ops for _, value in op.attrs)
    text = str(module)
    assert '@3.attn.q: f32[32, 32] = stored "layers.3.attn.q"' in text and "$layer" not in text
    assert " at layers.3.attn" in text and "%h.4: f32[T, 32] = add(" in text


def test_inlining_finds_a_fusion_over_the_border_of_layers() -> None:
    """The add at a layer's end and the norm at the next one's beginning are in one graph now."""
    skips = ("fuse-norm-qkv-rope",)
    decoder = tiny_decoders()["grouped"]
    counts = []
    for requests in ((), ("inline-layers",)):
        options = PipelineOptions(target="cpu.numpy", limits=LIMITS, requests=requests, skips=skips)
        result = run_pipeline(decoder.logical(OPS), PASSES, ops=OPS, spec=decoder.spec, options=options)
        ops = [op.name for graph in result.modules["decode"].graphs for op in graph.ops]
        counts.append(ops.count("add_rms_norm"))
    assert counts == [1, 3]  # one in the layer graph that is called twice; then one for each layer and one between


def test_a_split_layer_is_changed_alone() -> None:
    result = run("grouped", "split-layer{layer=1}")
    module = result.modules["decode"]
    assert [graph.name for graph in module.layers] == ["decoder_layer", "decoder_layer-1"]
    assert [op.callee for op in module.main.ops if op.callee] == ["decoder_layer", "decoder_layer-1"]
    (record,) = [record for record in result.records if record.name == "split-layer"]
    assert (record.stage, record.mode, record.outcome) == (Stage.PROGRAM, "", "changed")
    assert record.notes == ("layer 1 calls @decoder_layer-1, a copy of @decoder_layer",)
    assert "+graph @decoder_layer-1 {" in record.diff
    sites = {site.graph for site in result.sites if site.pass_name == "fuse-add-norm"}
    assert sites == {"decoder_layer", "decoder_layer-1"}


def test_where_there_is_nothing_to_do_the_module_comes_back() -> None:
    split, _ = split_layer(tiny_decoders()["grouped"].logical(OPS), SplitLayerOptions(layer=1))
    again, notes = split_layer(split, SplitLayerOptions(layer=1))
    assert again is split and notes == ("@decoder_layer-1 is layer 1's own already",)
    inlined, _ = inline_layers(run("grouped").modules["decode"])
    again, notes = inline_layers(inlined)
    assert again is inlined and notes == ("@main calls no graph that could be put in its place",)


def test_a_name_that_is_taken_is_not_used_twice() -> None:
    module, _ = split_layer(tiny_decoders()["grouped"].logical(OPS), SplitLayerOptions(layer=1))
    back = module.main.with_ops(op if op.callee != "decoder_layer-1" else calling(op) for op in module.main.ops)
    again, _ = split_layer(module.replacing(back), SplitLayerOptions(layer=1))
    assert [graph.name for graph in again.layers] == ["decoder_layer", "decoder_layer-1.1", "decoder_layer-1"]
    verify_module(again, OPS, stage="logical")


def test_calls_inside_layers_and_other_names_of_sizes() -> None:
    module = parse_module(NESTED)
    inlined, notes = inline_layers(module)
    verify_module(inlined, OPS)
    assert [op.name for op in inlined.main.ops] == ["add", "exp", "silu", "call"]
    assert notes == (
        "2 calls became the ops of what they called",
        "the call of @shifted stays: its sizes have other names here",
    )
    assert [graph.name for graph in inlined.graphs] == ["main", "shifted"]
    assert differences(module, inlined, "main", OPS) == []


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(UsageError, match=r"@main calls no graph for layer 7") as caught:
        run("grouped", "split-layer{layer=7}")
    assert caught.value.hint == "it calls them for 0 to 1"
    with pytest.raises(PassOptionError, match=r"step 'split-layer' needs a value for layer"):
        run("grouped", "split-layer")
    with pytest.raises(PassOptionError, match=r"step 'inline-layers' has no options"):
        run("grouped", "inline-layers{layer=1}")
    with pytest.raises(UsageError, match="no graph for layer 0"):
        split_layer(Module("", (parse_module(NESTED).graph("inner"),)), SplitLayerOptions(layer=0))


def test_they_stand_in_the_order_only_when_asked_for() -> None:
    names = [place.name for place in pipeline_order(PASSES, PipelineOptions())]
    assert "inline-layers" not in names and "split-layer" not in names
    asked = PipelineOptions(requests=("inline_layers", "split-layer{layer=0}"))
    places = {place.name: place for place in pipeline_order(PASSES, asked)}
    program = [name for name, place in places.items() if place.stage is Stage.PROGRAM]
    assert program == ["split-layer", "prefill-decode-specialization", "inline-layers"]
    assert places["inline-layers"].because == "after the logical passes; asked for by --pass"


def calling(op: Op) -> Op:
    return replace(op, attrs=(("callee", "decoder_layer"), ("layer", op.attr("layer"))))


NESTED = """module main

graph @main {
  dim T in [1, 8]
  dim B in [1, 8]
  input %x: f32[T, 4]
  input %b: f32[B, 4]
  %h: f32[T, 4] = call @outer(%x) {layer = 0}
  %g: f32[B, 4] = call @shifted(%b) {layer = 0}
  yield %h, %g
}
graph @outer {
  dim T in [1, 8]
  input %x: f32[T, 4]
  weight @w: f32[4] = stored "layers.$layer.w"
  %a: f32[T, 4] = add(%x, @w) at part
  %y: f32[T, 4] = call @inner(%a) {layer = $layer}
  %z: f32[T, 4] = silu(%y)
  yield %z
}
graph @inner {
  dim T in [1, 8]
  input %x: f32[T, 4]
  %y: f32[T, 4] = exp(%x)
  yield %y
}
graph @shifted {
  dim T in [1, 8]
  input %x: f32[T, 4]
  %y: f32[T, 4] = exp(%x)
  yield %y
}
"""
