"""The logical module of a decoder: classes, calls, tables, heads, and the models it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheir.errors import MalformedModelError, UnsupportedModelError
from cacheir.ir.graph import Graph, Module
from cacheir.ir.parser import parse_module
from cacheir.ir.types import QuantType, TensorType, Type
from cacheir.ir.verify import verify_module
from cacheir.models.block import BlockRequest, LayerWriter
from cacheir.models.decoder_graph import SizeLimits, build_logical, weight_type, weight_types
from cacheir.models.decoder_spec import DecoderSpec, LayerSpec, RopeSpec
from cacheir.models.imported import WeightSource
from cacheir.models.weight_shapes import weight_shapes
from cacheir.ops.table import core_ops
from cacheir.plugins.specs import FamilySpec
from cacheir.testing.tiny_decoders import LIMITS, tiny_decoders

OPS = core_ops()
HALF = RopeSpec(theta=10000.0, dims=8)
LAYER = LayerSpec(heads=4, kv_heads=2, head_dim=8, feed_forward=48, rope=HALF)


def decoder(*layers: LayerSpec, **fields: Any) -> DecoderSpec:
    basics = {"family": "llama", "label": "Tiny", "vocab_size": 50, "hidden": 32, "max_positions": 64}
    return DecoderSpec(**{**basics, "norm_eps": 1e-5, "tied_head": True, "layers": layers, **fields})


def dense(spec: DecoderSpec) -> dict[str, Type]:
    shapes = weight_shapes(spec)
    return {key: TensorType.of("f32", *shapes[key]) for key in spec.weight_keys()}


def built(spec: DecoderSpec, types: dict[str, Type] | None = None, **more: Any) -> Module:
    return build_logical(spec, dense(spec) if types is None else types, ops=OPS, limits=LIMITS, **more)


def calls(module: Module) -> list[tuple[str, object]]:
    return [(op.callee, op.attr("layer")) for op in module.main.ops if op.callee]


@pytest.mark.parametrize("name", sorted(tiny_decoders()))
def test_tiny_decoders_verify_and_survive_their_text(name: str) -> None:
    module = tiny_decoders()[name].logical(OPS)
    verify_module(module, OPS, stage="logical")
    assert parse_module(str(module)) == module and module.mode == ""


def test_a_layer_is_written_once_and_called_for_each() -> None:
    module = built(decoder(*[LAYER] * 30))
    assert [graph.name for graph in module.graphs] == ["main", "decoder_layer", "head.logits"]
    assert calls(module) == [("decoder_layer", number) for number in range(30)]
    assert [op.result.name for op in module.main.ops if op.callee][3] == "h.4"


def test_the_ops_of_a_logical_layer_are_those_of_the_architecture_page() -> None:
    layer = built(decoder(LAYER)).graph("decoder_layer")
    names = [op.name for op in layer.ops if op.name != "reshape"]
    assert names == [
        "rms_norm",
        "linear",
        "linear",
        "linear",
        "rope",
        "rope",
        "grouped_query_attention",
        "linear",
        "add",
        "rms_norm",
        "linear",
        "linear",
        "silu",
        "multiply",
        "linear",
        "add",
    ]
    assert [value.name for value in layer.params] == ["h", "cos", "sin", "positions", "row_starts"]
    assert {op.scope for op in layer.ops} == {"attn", "ffn"}
    assert dict(layer.recipes)["attn.q"].key == "layers.$layer.attn.q"  # type: ignore[union-attr]


def test_layers_are_grouped_by_shape_and_by_the_types_of_their_weights() -> None:
    spec = decoder(LAYER, replace(LAYER, window=4), LAYER, LAYER)
    types = dense(spec)
    types["layers.3.attn.v"] = QuantType.of("q8_0", "f32", 16, 32)
    module = built(spec, types)
    assert calls(module) == [("decoder_layer", 0), ("decoder_layer.1", 1), ("decoder_layer", 2), ("decoder_layer.2", 3)]
    assert str(module.graph("decoder_layer.2").weights[3].value.type) == "q8_0<f32>[16, 32]"


@given(st.lists(st.sampled_from([0, 4, 9]), min_size=1, max_size=8), st.lists(st.booleans(), min_size=8, max_size=8))
def test_every_layer_is_called_once_by_the_graph_of_its_class(windows: list[int], quantised: list[bool]) -> None:
    spec = decoder(*[replace(LAYER, window=window) for window in windows])
    types = dense(spec)
    for number in range(len(windows)):
        if quantised[number]:
            types[f"layers.{number}.ffn.up"] = QuantType.of("q8_0", "f32", 48, 32)
    module = built(spec, types)
    assert [layer for _, layer in calls(module)] == list(range(len(windows)))
    by_class = list(zip(windows, quantised))
    for (name, left), (other, right) in zip(calls(module), calls(module)[1:]):
        assert (name == other) == (by_class[left] == by_class[right])  # type: ignore[index]
    assert len(module.layers) == len(set(by_class))


def test_one_table_for_each_distinct_rope() -> None:
    other = RopeSpec(theta=500.0, dims=4, factors=(1.0, 8.0), magnitude=1.25)
    paired = replace(HALF, layout="interleaved")
    layers = [LAYER, replace(LAYER, rope=other), replace(LAYER, rope=paired), replace(LAYER, rope=None), LAYER]
    module = built(decoder(*layers))
    tables = [op for op in module.main.ops if op.name == "rope_table"]
    assert [dict(table.attrs) for table in tables] == [
        {"theta": 10000.0, "dims": 8, "factors": (), "magnitude": 1.0},
        {"theta": 500.0, "dims": 4, "factors": (1.0, 8.0), "magnitude": 1.25},
    ]
    operands = [[value.name for value in op.operands] for op in module.main.ops if op.callee]
    assert operands[0][1:3] == operands[2][1:3] == operands[4][1:3] == ["cos", "sin"]
    assert operands[1][1:3] == ["cos.1", "sin.1"] and "cos" not in operands[3]
    verify_module(module, OPS)


def test_tied_and_own_heads() -> None:
    tied = built(decoder(LAYER)).graph("head.logits")
    own = built(decoder(LAYER, tied_head=False, head_bias=True)).graph("head.logits")
    assert [weight.recipe.key for weight in tied.weights] == ["embed"]  # type: ignore[union-attr]
    assert [weight.recipe.key for weight in own.weights] == ["head", "head_bias"]  # type: ignore[union-attr]


def test_the_limits_bound_the_sizes() -> None:
    spec = decoder(LAYER)
    module = build_logical(spec, dense(spec), ops=OPS, limits=SizeLimits(max_tokens=100, max_rows=200, max_seq=10))
    assert module.main.dims == module.layers[0].dims == (("T", 1, 100), ("B", 1, 200))
    assert module.heads[0].dims == (("R", 1, 200),)
    assert built(spec).heads[0].dims == (("R", 1, 64),)


def test_attention_scale_is_written_out() -> None:
    attention = [
        op
        for scale in (0.0, 0.5)
        for op in built(decoder(replace(LAYER, attention_scale=scale))).layers[0].ops
        if op.name == "grouped_query_attention"
    ]
    assert [op.attr("scale") for op in attention] == [8**-0.5, 0.5]


@pytest.mark.parametrize("key", ["embed", "norm", "head", "head_bias"])
def test_a_missing_tensor_of_main_is_named(key: str) -> None:
    spec = decoder(LAYER, tied_head=False, head_bias=True)
    types = dense(spec)
    del types[key]
    with pytest.raises(MalformedModelError, match=f"no tensor for '{key}'"):
        built(spec, types)


def test_a_missing_tensor_of_a_layer_is_named() -> None:
    spec = decoder(LAYER, LAYER)
    types = dense(spec)
    del types["layers.1.attn.k"]
    with pytest.raises(UnsupportedModelError, match=r"@decoder_layer\.1 have no weight 'attn.k'"):
        built(spec, types)


@pytest.mark.parametrize("key", ["embed", "layers.1.attn.v", "layers.0.ffn_norm", "layers.1.ffn.down"])
def test_a_tensor_of_another_shape_is_named_with_both_shapes(key: str) -> None:
    spec = decoder(LAYER, LAYER)
    types = dense(spec)
    types[key] = TensorType.of("f32", 7, 9)
    with pytest.raises(
        MalformedModelError, match=rf"'{key}' has the shape \[7, 9\], but the configuration makes it \["
    ):
        built(spec, types)


def test_a_tensor_that_the_block_would_leave_unread_is_refused() -> None:
    spec = decoder(LAYER)
    types = {**dense(spec), "layers.0.attn.q_norm": TensorType.of("f32", 8)}
    with pytest.raises(UnsupportedModelError, match=r"'attn\.q_norm', which the standard block does not read"):
        built(spec, types)
    # The same tensor fits the block that reads biases, and not the one that does not.
    types = {**dense(spec), "layers.0.attn.q_bias": TensorType.of("f32", 32)}
    with pytest.raises(UnsupportedModelError, match="does not read"):
        built(spec, types)


def test_an_activation_without_an_op_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match="no op computes the activation 'snake'"):
        built(decoder(replace(LAYER, activation="snake")))


def parallel_block(request: BlockRequest) -> Graph:
    """A family's own block: attention and an ungated feed-forward side by side, one norm, no positions for rope."""
    writer = LayerWriter(request)
    graph = writer.graph
    x = graph.op("rms_norm", writer.h, writer.weight("attn_norm"), eps=request.spec.norm_eps)
    layer = request.layer
    q, k, v = (
        writer.by_head(writer.linear(x, f"attn.{part}", bias=False, result=part), heads, f"{part}_heads")
        for part, heads in (("q", layer.heads), ("k", layer.kv_heads), ("v", layer.kv_heads))
    )
    mixed = graph.op("grouped_query_attention", q, k, v, writer.positions, writer.row_starts, scale=0.5)
    mixed = graph.op("reshape", mixed, shape=("T", str(layer.heads * layer.head_dim)))
    out = graph.op("add", writer.h, writer.linear(mixed, "attn.o", bias=False, result="o"))
    return graph.finish(graph.op("add", out, writer.linear(x, "ffn.square", bias=False, result="square")))


def bad_block(request: BlockRequest) -> Graph:
    writer = LayerWriter(request)
    writer.graph.input("mystery", TensorType.of("f32", "T"))
    return writer.graph.finish(writer.h)


def family(block: Any) -> dict[str, FamilySpec]:
    spec = FamilySpec(
        name="parallel",
        summary="A family with its own block.",
        architectures=("ParallelForCausalLM",),
        gguf_architectures=(),
        config="nowhere:config",
        gguf_config="nowhere:config",
        names="nowhere:names",
        block=block,
    )
    return {"parallel": spec}


def test_a_family_brings_its_own_block_without_a_change_in_core() -> None:
    spec = decoder(replace(LAYER, rope=None), family="parallel")
    keys = {"attn_norm": (32,), "attn.q": (32, 32), "attn.k": (16, 32), "attn.v": (16, 32), "attn.o": (32, 32)}
    types: dict[str, Type] = {f"layers.0.{key}": TensorType.of("f32", *shape) for key, shape in keys.items()}
    types |= {"embed": TensorType.of("f32", 50, 32), "norm": TensorType.of("f32", 32)}
    types["layers.0.ffn.square"] = TensorType.of("f32", 32, 32)
    module = built(spec, types, families=family(parallel_block))
    verify_module(module, OPS, stage="logical")
    assert "ffn.square" in module.layers[0].recipes


def test_a_block_with_a_parameter_that_main_does_not_have_is_refused() -> None:
    spec = decoder(LAYER, family="parallel")
    with pytest.raises(
        UnsupportedModelError, match=r"family 'parallel' wrote @decoder_layer with the parameter %mystery"
    ):
        built(spec, families=family(bad_block))


def test_types_follow_from_where_tensors_lie() -> None:
    source = WeightSource(file="m", tensor="t", offset=0, nbytes=1, format="bf16", shape=(3, 64))
    assert str(weight_type(source)) == "bf16[3, 64]"
    assert {key: str(type_) for key, type_ in weight_types({"a": replace(source, format="q4_1")}).items()} == {
        "a": "q4_1<f32>[3, 64]"
    }
