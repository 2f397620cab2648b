"""Writes the logical module of a decoder: main, one graph for each class of layers, and the head that gives logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from cacheir.errors import MalformedModelError, UnsupportedModelError
from cacheir.ir.builder import GraphBuilder
from cacheir.ir.dtypes import is_dtype
from cacheir.ir.graph import Graph, Module, Value
from cacheir.ir.opdef import OpDef
from cacheir.ir.types import QuantType, TensorType, Type
from cacheir.models.block import BlockBuilder, BlockRequest, offset_weight
from cacheir.models.decoder_spec import DecoderSpec, LayerSpec
from cacheir.models.imported import WeightSource
from cacheir.models.rotation import RotationTables
from cacheir.models.standard_block import standard_block
from cacheir.models.weight_shapes import weight_shapes
from cacheir.plugins.model_records import FamilySpec
from cacheir.plugins.ref import resolve

Dims = tuple[tuple[str, int, int], ...]
_T = TypeVar("_T")

# Rows that one call of a head takes at least: what more a step wants, an executor runs in several calls, so that
# logits never take more than this many vocabularies.
HEAD_ROWS = 64


@dataclass(frozen=True, kw_only=True)
class SizeLimits:
    """Upper bounds of the named sizes: tokens of a step, rows of a step, positions of a row."""

    max_tokens: int = 512
    max_rows: int = 8
    max_seq: int = 2048


def build_logical(
    spec: DecoderSpec,
    weight_types: Mapping[str, Type],
    *,
    ops: Mapping[str, OpDef],
    families: Mapping[str, FamilySpec] | None = None,
    limits: SizeLimits = SizeLimits(),
    formats: Mapping[str, str] | None = None,
) -> Module:
    """The logical module, whose mode is "".

    ``weight_types`` are the types by canonical key. The family's own block builder writes the layer graphs where it
    has one. Layers that are equal as ``LayerSpec``, in the types of their weights and in what ``formats`` (canonical
    key -> block format) plans for them share one graph, so that ``quantize-weights`` can treat them alike; graphs are
    called ``decoder_layer``, ``decoder_layer.1`` and so on, by their first layer.

    Raises:
        MalformedModelError: a weight is missing, or its shape does not follow from the specification.
        UnsupportedModelError: the block builder cannot write a layer.
    """
    check_weights(spec, weight_types)
    family = (families or {}).get(spec.family)
    block: BlockBuilder = standard_block if family is None or family.block is None else resolve(family.block)
    dims: Dims = (("T", 1, limits.max_tokens), ("B", 1, limits.max_rows))
    classes, layer_class = _classes(spec, weight_types, formats or {})
    graphs = tuple(
        block(
            BlockRequest(
                name="decoder_layer" if number == 0 else f"decoder_layer.{number}",
                layer=layer,
                spec=spec,
                weights=dict(types),
                dims=dims,
                ops=ops,
            )
        )
        for number, (layer, types, _) in enumerate(classes)
    )
    main = _main(spec, weight_types, limits, dims, [graphs[number] for number in layer_class], ops)
    return Module("", (main, *graphs, _logits_head(spec, weight_types, ops, limits)))


def weight_type(source: WeightSource) -> Type:
    """The type of a stored tensor: dense for an element type, quantised and unpacking to f32 for a block format."""
    if is_dtype(source.format):
        return TensorType.of(source.format, *source.shape)
    return QuantType.of(source.format, "f32", *source.shape)


def weight_types(sources: Mapping[str, WeightSource]) -> dict[str, Type]:
    """The types of all stored tensors by canonical key."""
    return {key: weight_type(source) for key, source in sources.items()}


def check_weights(spec: DecoderSpec, types: Mapping[str, Type]) -> None:
    """Raise MalformedModelError for a weight of the standard block that has another shape than ``spec`` gives it.

    A key of the standard block that is missing altogether is the block builder's affair, save for those of main and
    the head.
    """
    shapes = weight_shapes(spec)
    needed = ["embed", "norm", *([] if spec.tied_head else ["head"]), *(["head_bias"] if spec.head_bias else [])]
    for key in needed:
        if key not in types:
            raise MalformedModelError(f"{spec.label}: the model has no tensor for {key!r}")
    for key, shape in shapes.items():
        held = getattr(types.get(key), "shape", None)
        if held is not None and held != TensorType.of("f32", *shape).shape:
            given, wanted = ([*map(str, sizes)] for sizes in (held, shape))
            raise MalformedModelError(
                f"{spec.label}: tensor {key!r} has the shape [{', '.join(given)}], "
                f"but the configuration makes it [{', '.join(wanted)}]",
                hint="the configuration and the weights are of different models",
            )


# The layer, the types of its weights, and the formats that they are to be quantised into.
LayerClass = tuple[LayerSpec, tuple[tuple[str, Type], ...], tuple[tuple[str, str], ...]]


def _classes(
    spec: DecoderSpec, types: Mapping[str, Type], formats: Mapping[str, str]
) -> tuple[list[LayerClass], list[int]]:
    """The classes by their first layer, and the class of each layer."""
    held, planned = _by_layer(types, len(spec.layers)), _by_layer(formats, len(spec.layers))
    classes: dict[LayerClass, int] = {}
    members = []
    for layer, own_types, own_formats in zip(spec.layers, held, planned):
        members.append(classes.setdefault((layer, own_types, own_formats), len(classes)))
    return list(classes), members


def _by_layer(table: Mapping[str, _T], layers: int) -> list[tuple[tuple[str, _T], ...]]:
    """For each layer (part of the key, entry), sorted by part."""
    parts: list[dict[str, _T]] = [{} for _ in range(layers)]
    for key, entry in table.items():
        head, _, rest = key.partition(".")
        number, _, part = rest.partition(".")
        if head == "layers" and number.isdigit() and int(number) < layers:
            parts[int(number)][part] = entry
    return [tuple(sorted(held.items(), key=lambda item: item[0])) for held in parts]


def _main(
    spec: DecoderSpec,
    types: Mapping[str, Type],
    limits: SizeLimits,
    dims: Dims,
    layers: list[Graph],
    ops: Mapping[str, OpDef],
) -> Graph:
    graph = GraphBuilder("main", ops, dims=dims)
    tokens = graph.input("tokens", TensorType.of("i32", "T"))
    given = {
        "positions": graph.input("positions", TensorType.of("i32", "T")),
        "row_starts": graph.input("row_starts", TensorType.of("i32", "B + 1")),
    }
    h = graph.op("embedding", tokens, graph.weight("embed", types["embed"], "embed"), result="h.0")
    if spec.embedding_scale != 1:
        h = graph.op("multiply", h, _number(graph, spec.embedding_scale), result="h.0")
    tables = RotationTables(graph, given["positions"], limits.max_seq)
    for number, (layer, callee) in enumerate(zip(spec.layers, layers)):
        values = {**given, "h": h}
        if layer.rope is not None:
            values["cos"], values["sin"] = tables.of(layer.rope)
        missing = [param.name for param in callee.params if param.name not in values]
        if missing or len(callee.outputs) != 1:
            raise UnsupportedModelError(
                f"the block builder of family {spec.family!r} wrote @{callee.name} with "
                + (f"the parameter %{missing[0]}, which main does not have" if missing else "more than one result"),
                hint="cacheir.models.block says what a layer graph takes and yields",
            )
        operands = [values[param.name] for param in callee.params]
        (h,) = graph.call(callee, operands, layer=number, results=[f"h.{number + 1}"])
    weight = graph.weight("norm", types["norm"], "norm")
    if spec.norm_offset:
        weight = offset_weight(graph, weight, spec.norm_offset)
    return graph.finish(graph.op("rms_norm", h, weight, eps=spec.norm_eps, result="hidden"))


def _logits_head(spec: DecoderSpec, types: Mapping[str, Type], ops: Mapping[str, OpDef], limits: SizeLimits) -> Graph:
    graph = GraphBuilder("head.logits", ops, dims=(("R", 1, max(HEAD_ROWS, limits.max_rows)),))
    rows = graph.input("rows", TensorType.of("f32", "R", spec.hidden))
    key = "embed" if spec.tied_head else "head"
    weights = [graph.weight("head", types[key], key)]
    if spec.head_bias:
        weights.append(graph.weight("head_bias", types["head_bias"], "head_bias"))
    logits = graph.op("linear", rows, *weights, result="logits")
    if spec.logit_scale != 1:
        logits = graph.op("multiply", logits, _number(graph, spec.logit_scale), result="logits")
    if spec.logit_softcap:
        cap = _number(graph, spec.logit_softcap)
        bent = graph.op("tanh", graph.op("divide", logits, cap, result="bent"), result="bent")
        logits = graph.op("multiply", bent, cap, result="logits")
    return graph.finish(logits)


def _number(graph: GraphBuilder, value: float) -> Value:
    return graph.op("constant", dtype="f32", shape=(), values=(float(value),), result="scale")
