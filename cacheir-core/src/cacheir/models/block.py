"""What a family's block builder is given, and what it gives back: one layer graph for one class of layers.

A block builder is ``(BlockRequest) -> Graph``. The graph takes ``%h`` f32 [T, H] first and any of the loop invariants
after it, by these names: ``%cos`` and ``%sin`` f32 [T, dims / 2] where the layer has a rope, ``%positions`` i32 [T],
``%row_starts`` i32 [B + 1]. It yields the residual stream f32 [T, H] and nothing else. At most one
``grouped_query_attention`` stands in it: that op names the layer's keys and values, from which the KV state follows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cacheir.errors import UnsupportedModelError
from cacheir.ir.builder import GraphBuilder
from cacheir.ir.graph import Graph, Value
from cacheir.ir.opdef import OpDef
from cacheir.ir.types import TensorType, Type
from cacheir.ir.weights import LAYER_MARK, Derived
from cacheir.models.decoder_spec import DecoderSpec, LayerSpec


@dataclass(frozen=True, kw_only=True)
class BlockRequest:
    """One class of layers. ``weights`` are the types of all its weights by their part of the key, ``attn.q``."""

    name: str
    layer: LayerSpec
    spec: DecoderSpec
    weights: Mapping[str, Type]
    dims: tuple[tuple[str, int, int], ...]
    ops: Mapping[str, OpDef]


BlockBuilder = Callable[[BlockRequest], Graph]


class LayerWriter:
    """A layer graph in the making, with the standard parameters declared.

    ``graph`` is the builder to call ops on. ``table`` is ``(cos, sin)``, () for a layer without a rope.
    """

    def __init__(self, request: BlockRequest) -> None:
        self.request = request
        self.graph = GraphBuilder(request.name, request.ops, dims=request.dims)
        self.h = self.graph.input("h", TensorType.of("f32", "T", request.spec.hidden))
        self.table: tuple[Value, ...] = ()
        if request.layer.rope is not None:
            half = TensorType.of("f32", "T", request.layer.rope.dims // 2)
            self.table = (self.graph.input("cos", half), self.graph.input("sin", half))
        self.positions = self.graph.input("positions", TensorType.of("i32", "T"))
        self.row_starts = self.graph.input("row_starts", TensorType.of("i32", "B + 1"))

    def weight(self, part: str) -> Value:
        """The layer's weight ``part``; UnsupportedModelError where the model has none."""
        type_ = self.request.weights.get(part)
        if type_ is None:
            raise UnsupportedModelError(
                f"{self.request.spec.label}: layers of the class @{self.request.name} have no weight {part!r}",
                hint=f"they have {', '.join(sorted(self.request.weights))}",
            )
        return self.graph.weight(part, type_, f"layers.{LAYER_MARK}.{part}")

    def norm(self, x: Value, part: str, *, result: str) -> Value:
        """RMS norm of the last axis of ``x`` by the weight ``part``, the model's offset added to it."""
        spec = self.request.spec
        weight = self.weight(part)
        if spec.norm_offset:
            weight = offset_weight(self.graph, weight, spec.norm_offset)
        return self.graph.op("rms_norm", x, weight, eps=spec.norm_eps, result=result)

    def times(self, x: Value, factor: float, *, result: str) -> Value:
        """``x`` times a number; ``x`` itself where that is 1."""
        if factor == 1:
            return x
        number = self.graph.op("constant", dtype="f32", shape=(), values=(float(factor),), result="factor")
        return self.graph.op("multiply", x, number, result=result)

    def linear(self, x: Value, part: str, *, bias: bool, result: str) -> Value:
        """``x`` times the weight ``part``, plus ``part_bias`` where ``bias``."""
        operands = (self.weight(part), self.weight(f"{part}_bias")) if bias else (self.weight(part),)
        return self.graph.op("linear", x, *operands, result=result)

    def by_head(self, x: Value, heads: int, result: str) -> Value:
        """``x`` [T, heads * head_dim] as [T, heads, head_dim]."""
        return self.graph.op("reshape", x, shape=("T", str(heads), str(self.request.layer.head_dim)), result=result)


def offset_weight(graph: GraphBuilder, weight: Value, by: float) -> Value:
    """A weight that is ``weight`` in f32 plus ``by``, made once when the model is loaded."""
    type_ = weight.type
    if not isinstance(type_, TensorType):
        raise UnsupportedModelError(f"the norm weight {weight} is stored as {type_}, and nothing can be added to that")
    wide = TensorType("f32", type_.shape)
    name = weight.name
    if type_.dtype != "f32":
        weight = graph.weight(f"{name}.wide", wide, Derived("cast", (name,), (("dtype", "f32"),)))
    return graph.weight(f"{name}.offset", wide, Derived("offset", (weight.name,), (("by", float(by)),)))
