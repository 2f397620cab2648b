"""fuse-norm-qkv-rope: norm, projections and rotation before attention become one op."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cacheir.ir.dims import Dim
from cacheir.ir.graph import Attr, Graph, Op, Value
from cacheir.ir.rewriter import Rewriter
from cacheir.ir.types import TensorType

if TYPE_CHECKING:
    from cacheir.pipeline.context import PassContext


def fuse_norm_qkv_rope(graph: Graph, context: PassContext) -> Graph:
    """``rms_norm``, ``fused_qkv``, a ``reshape`` to heads each, ``rope`` on q and k -> ``fused_rmsnorm_qkv_rope``."""
    projections = graph.ops_named("fused_qkv")
    if not projections:
        context.note("no fused_qkv")
        return graph
    finder = _Finder(graph)
    matches: dict[str, _Match] = {}
    for op in projections:
        match = finder.match(op)
        if isinstance(match, str):
            context.note(match)
        else:
            matches[op.results[0].name] = match

    def rule(op: Op, rewriter: Rewriter) -> Iterable[Value] | None:
        match = matches.get(op.results[0].name)
        if match is None:
            return None
        norm = match.norm
        fused = rewriter.emit(
            "fused_rmsnorm_qkv_rope",
            (*norm.operands, *op.operands[1:4], match.cos, match.sin, *op.operands[4:]),
            [value.type for value in match.replaced],
            attrs={
                **dict(norm.attrs),
                **dict(match.rope_attrs),
                "heads": match.heads,
                "kv_heads": match.kv_heads,
            },
            scope=op.scope,
            hints=[value.name for value in match.replaced],
        )
        for old, new in zip(match.replaced, fused):
            rewriter.stand_in(old, new)
        context.note(f"fused the norm by {norm.operands[1]}, the projections and the rotation")
        return None  # fused_qkv itself has no reader left and goes

    return context.rewrite(graph, rule, of=("fused_qkv",))


@dataclass(frozen=True)
class _Match:
    norm: Op
    cos: Value
    sin: Value
    rope_attrs: tuple[tuple[str, Attr], ...]
    heads: int
    kv_heads: int
    replaced: tuple[Value, Value, Value]  # rotated q, rotated k, v by heads


class _Finder:
    """Looks around a ``fused_qkv`` op of one graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.producers = graph.producers()
        self.uses = graph.uses()
        self.outputs = {value.name for value in graph.outputs}

    def match(self, op: Op) -> _Match | str:
        """The match around ``op``, or the sentence that says why there is none."""
        here = f"around {op.results[0]}"
        norm = self.producers.get(op.operands[0].name)
        if norm is None or norm.name != "rms_norm":
            return f"{here}: the input is not the result of rms_norm"
        if self.only_reader(norm.result) is not op:
            return f"{here}: the normed value has other readers"
        by_head = [self.only_reader(value) for value in op.results]
        if any(reader is None or reader.name != "reshape" or not _splits_heads(reader) for reader in by_head):
            return f"{here}: q, k and v are not each split into heads, and nothing else"
        reshapes = [reader for reader in by_head if reader is not None]
        turns = [self.only_reader(reader.result) for reader in reshapes[:2]]
        ropes = [turn for turn in turns if turn is not None and turn.name == "rope"]
        if len(ropes) < 2 or ropes[0].operands[0] != reshapes[0].result or ropes[1].operands[0] != reshapes[1].result:
            return f"{here}: q and k do not both turn right after they are split into heads"
        q, k = ropes
        if q.operands[1:] != k.operands[1:] or q.attrs != k.attrs:
            return f"{here}: q and k turn by different tables or layouts"
        cos, sin = q.operands[1:]
        if not (self.is_before(cos, op) and self.is_before(sin, op)):
            return f"{here}: the rotation table is computed after the projections"
        heads, kv_heads = (_heads(value) for value in (q.result, k.result))
        if heads is None or kv_heads is None:
            return f"{here}: the number of heads is not a constant"
        return _Match(norm, cos, sin, q.attrs, heads, kv_heads, (q.result, k.result, reshapes[2].result))

    def only_reader(self, value: Value) -> Op | None:
        """The op that reads ``value``, where there is exactly one and the graph does not yield it."""
        readers = self.uses.get(value.name, [])
        return readers[0] if len(readers) == 1 and value.name not in self.outputs else None

    def is_before(self, value: Value, op: Op) -> bool:
        """Whether ``value`` exists when ``op`` runs."""
        places = self.graph.places
        return places.get(value.name, -1) < places[op.results[0].name]


def _splits_heads(op: Op) -> bool:
    """Whether a reshape makes [T, heads, D] of [T, heads * D]."""
    before, after = op.operands[0].type, op.result.type
    if not isinstance(before, TensorType) or not isinstance(after, TensorType):
        return False
    return len(before.shape) == 2 and len(after.shape) == 3 and before.shape[0] == after.shape[0]


def _heads(value: Value) -> int | None:
    size = value.type.shape[1] if isinstance(value.type, TensorType) else Dim()
    return size.constant if size.is_constant and size.constant else None
