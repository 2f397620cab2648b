"""drop-no-ops: ops that give their operand back go, and two changes of shape or type in a row become one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from cacheir.ir.graph import Graph, Op, Value
from cacheir.ir.rewriter import Rewriter
from cacheir.ir.types import TensorType

if TYPE_CHECKING:
    from cacheir.pipeline.context import PassContext

# Element type -> those that hold all of its numbers, so that a cast there and back gives the same bits.
_WIDER: Mapping[str, frozenset[str]] = {
    "f16": frozenset({"f32", "f64"}),
    "bf16": frozenset({"f32", "f64"}),
    "f32": frozenset({"f64"}),
    "i8": frozenset({"i16", "i32", "i64"}),
    "u8": frozenset({"i16", "i32", "i64"}),
    "i16": frozenset({"i32", "i64"}),
    "i32": frozenset({"i64"}),
}
_FLOATS = frozenset({"f16", "bf16", "f32", "f64"})
# Ops that undo themselves.
_TWICE = frozenset({"negate", "logical_not"})


def drop_no_ops(graph: Graph, context: PassContext) -> Graph:
    """Let operands stand in for results that are bit for bit the same.

    A reshape, transpose, cast, slice, broadcast or concat that changes nothing; a product with ones, a sum with zeros;
    a reshape of a reshape, a transpose of a transpose, a cast back. x + 0.0 stays where x is floating point: it turns
    -0.0 into 0.0, while x + -0.0 and x - 0.0 do not. A result that the graph yields stays too, where its operand is
    yielded itself or comes from outside: what is yielded has a place of its own.
    """
    yielded = {value.name for value in graph.outputs}

    def rule(op: Op, rewriter: Rewriter) -> Iterable[Value] | None:
        if len(op.results) != 1:
            return None
        same = _RULES[op.name](op, rewriter)
        if same is not None and same.type == op.result.type:
            if op.result.name in yielded and (same.origin != "op" or same.name in yielded):
                context.note(f"{op.name} {op.result} gives {same} back, but is yielded")
                return None
            if op.result.name in yielded:
                yielded.add(same.name)
            context.note(f"{op.name} {op.result} is {same}")
            return [same]
        return _merged(op, rewriter, context)

    changed = context.rewrite(graph, rule, of=_RULES)
    if changed is graph:
        context.note("every op changes something")
    return changed


def _merged(op: Op, rewriter: Rewriter, context: PassContext) -> tuple[Value, ...] | None:
    """A reshape of a reshape, or a transpose of a transpose, as one op; None where ``op`` is neither."""
    inner = rewriter.producer(op.operands[0])
    if inner is None or inner.name != op.name or op.name not in ("reshape", "transpose"):
        return None
    attrs = dict(op.attrs)
    if op.name == "transpose":
        inner_axes, axes = inner.attr("axes"), op.attr("axes")
        assert isinstance(inner_axes, tuple) and isinstance(axes, tuple)  # the ops' rules say so
        attrs["axes"] = tuple(inner_axes[axis] for axis in axes if isinstance(axis, int))
    context.note(f"{op.result} is one {op.name} of {inner.operands[0]}")
    return rewriter.emit(op.name, inner.operands, [op.result.type], attrs=attrs, scope=op.scope, hint=op.result.name)


def _operand(op: Op, rewriter: Rewriter) -> Value | None:
    """The operand, which is the result where their types are equal."""
    return op.operands[0]


def _reshape(op: Op, rewriter: Rewriter) -> Value | None:
    inner = rewriter.producer(op.operands[0])
    back = inner is not None and inner.name == "reshape" and inner.operands[0].type == op.result.type
    return inner.operands[0] if back and inner is not None else op.operands[0]


def _transpose(op: Op, rewriter: Rewriter) -> Value | None:
    axes, inner = op.attr("axes"), rewriter.producer(op.operands[0])
    if axes == tuple(range(len(axes) if isinstance(axes, tuple) else 0)):
        return op.operands[0]
    if inner is not None and inner.name == "transpose":
        inner_axes = inner.attr("axes")
        if isinstance(inner_axes, tuple) and isinstance(axes, tuple):
            if all(inner_axes[axis] == place for place, axis in enumerate(axes) if isinstance(axis, int)):
                return inner.operands[0]
    return None


def _cast(op: Op, rewriter: Rewriter) -> Value | None:
    inner = rewriter.producer(op.operands[0])
    if inner is not None and inner.name == "cast":
        source = inner.operands[0]
        if _dtype(inner.result) in _WIDER.get(_dtype(source), ()) and _dtype(source) == _dtype(op.result):
            return source
    return op.operands[0]


def _slice(op: Op, rewriter: Rewriter) -> Value | None:
    # Of equal size only where it begins at the start and ends at the end.
    return op.operands[0] if op.attr("start", 0) == 0 else None


def _concat(op: Op, rewriter: Rewriter) -> Value | None:
    return op.operands[0] if len(op.operands) == 1 else None


def _twice(op: Op, rewriter: Rewriter) -> Value | None:
    inner = rewriter.producer(op.operands[0])
    return inner.operands[0] if inner is not None and inner.name == op.name else None


def _neutral(right_only: bool, floats: float, whole: int) -> Callable[[Op, Rewriter], Value | None]:
    """A rule for ops of two operands: the other one where one is a constant full of the neutral number."""

    def rule(op: Op, rewriter: Rewriter) -> Value | None:
        sides = ((0, 1),) if right_only else ((0, 1), (1, 0))
        for kept, neutral in sides:
            value, maker = op.operands[kept], rewriter.producer(op.operands[neutral])
            wanted = repr(floats) if _dtype(value) in _FLOATS else repr(float(whole))
            if maker is not None and maker.name == "constant" and value.type == op.result.type:
                numbers = maker.attr("values")
                # repr tells 0.0 from -0.0
                if isinstance(numbers, tuple) and all(repr(_number(number)) == wanted for number in numbers):
                    return value
        return None

    return rule


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else float("nan")


def _dtype(value: Value) -> str:
    return value.type.dtype if isinstance(value.type, TensorType) else ""


_RULES: Mapping[str, Callable[[Op, Rewriter], Value | None]] = {
    "reshape": _reshape,
    "broadcast": _operand,
    "transpose": _transpose,
    "cast": _cast,
    "slice": _slice,
    "concat": _concat,
    "add": _neutral(right_only=False, floats=-0.0, whole=0),
    "subtract": _neutral(right_only=True, floats=0.0, whole=0),
    "multiply": _neutral(right_only=False, floats=1.0, whole=1),
    "divide": _neutral(right_only=True, floats=1.0, whole=1),
    **dict.fromkeys(_TWICE, _twice),
}
