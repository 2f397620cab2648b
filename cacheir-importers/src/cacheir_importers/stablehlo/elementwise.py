"""StableHLO operations on one element at a time: arithmetic, functions, compare, select, clamp, convert."""

from __future__ import annotations

from collections.abc import Mapping

from cacheir.ir.dtypes import FLOATS, INTEGERS
from cacheir.ir.graph import Value
from cacheir_importers.stablehlo.emitter import Attributes, Emitter, Rule, dtype_of, sizes_of, word_of
from cacheir_importers.stablehlo.syntax import Operation

_UNARY = {
    "negate": "negate", "abs": "abs", "exponential": "exp", "log": "log", "sqrt": "sqrt", "rsqrt": "rsqrt",
    "tanh": "tanh", "logistic": "sigmoid", "cosine": "cos", "sine": "sin", "floor": "floor",
    "round_nearest_even": "round",
}  # fmt: skip
_BINARY = {
    "add": "add", "subtract": "subtract", "multiply": "multiply", "divide": "divide", "maximum": "maximum",
    "minimum": "minimum", "power": "power",
}  # fmt: skip
# Truth values add up like bits.
_ON_TRUTHS = {
    "add": "logical_or", "multiply": "logical_and", "maximum": "logical_or", "minimum": "logical_and",
    "and": "logical_and", "or": "logical_or",
}  # fmt: skip
_DIRECTIONS = ("EQ", "NE", "LT", "LE", "GT", "GE")
_COMPARE_TYPES = ("", "FLOAT", "SIGNED", "UNSIGNED")


def binary(emitter: Emitter, name: str, a: Value, b: Value) -> Value:
    """``stablehlo.NAME`` of two values of one type."""
    kind = dtype_of(a)
    if a.type != b.type:
        emitter.fail(f"{name} needs two operands of one type, not {a.type} and {b.type}")
    if kind == "bool":
        if name == "xor":
            return emitter.op("compare", a, b, direction="ne")
        if name not in _ON_TRUTHS:
            emitter.refuse(f"{name} of truth values is not supported")
        return emitter.op(_ON_TRUTHS[name], a, b)
    if name in ("and", "or", "xor") or (name == "power" and kind in INTEGERS):
        emitter.refuse(f"{name} of {kind} is not supported")
    if name == "divide" and kind in INTEGERS:
        return emitter.op("divide_whole", a, b)
    if name == "remainder":
        if kind in FLOATS:
            emitter.refuse(f"remainder of {kind} is not supported")
        return emitter.op("subtract", a, emitter.op("multiply", emitter.op("divide_whole", a, b), b))
    return emitter.op(_BINARY[name], a, b)


def _binary_rule(emitter: Emitter, op: Operation, operands: list[Value]) -> list[Value]:
    a, b = take(emitter, op, operands, 2)
    return [binary(emitter, op.name.removeprefix("stablehlo."), a, b)]


def _unary_rule(emitter: Emitter, op: Operation, operands: list[Value]) -> list[Value]:
    (x,) = take(emitter, op, operands, 1)
    return [emitter.op(_UNARY[op.name.removeprefix("stablehlo.")], x)]


def _not(emitter: Emitter, op: Operation, operands: list[Value]) -> list[Value]:
    (x,) = take(emitter, op, operands, 1)
    if dtype_of(x) != "bool":
        emitter.refuse(f"not of {dtype_of(x)} is not supported")
    return [emitter.op("logical_not", x)]


def _ceil(emitter: Emitter, op: Operation, operands: list[Value]) -> list[Value]:
    (x,) = take(emitter, op, operands, 1)
    return [emitter.op("negate", emitter.op("floor", emitter.op("negate", x)))]


def _sign(emitter: Emitter, op: Operation, operands: list[Value]) -> list[Value]:
    """-1, the number itself where it is zero or NaN, or 1."""
    (x,) = take(emitter, op, operands, 1)
    kind = dtype_of(x)
    zero, one = emitter.scalar(0, kind), emitter.scalar(1, kind)
    result = emitter.op("select", emitter.op("compare", x, zero, direction="gt"), one, x)
    if kind.startswith("u"):
        return [result]
    below = emitter.op("compare", x, zero, direction="lt")
    return [emitter.op("select", below, emitter.scalar(-1, kind), result)]


def _compare(emitter: Emitter, op: Operation, operands: list[Value]) -> list[Value]:
    a, b = take(emitter, op, operands, 2)
    attributes = Attributes(emitter, op)
    written = attributes.get("comparison_direction")
    direction = word_of(written) if written is not None else (op.words[0] if op.words else "")
    kind = word_of(attributes.get("compare_type")) or (op.words[1] if len(op.words) > 1 else "")
    attributes.finish()
    if direction not in _DIRECTIONS:
        emitter.fail(f"compare needs a direction of {', '.join(_DIRECTIONS)}, not {direction!r}")
    if kind not in _COMPARE_TYPES:
        emitter.refuse(f"comparison of type {kind!r} is not supported")
    if a.type != b.type:
        emitter.fail(f"compare needs two operands of one type, not {a.type} and {b.type}")
    return [emitter.op("compare", a, b, direction=direction.lower())]


def _select(emitter: Emitter, op: Operation, operands: list[Value]) -> list[Value]:
    condition, a, b = take(emitter, op, operands, 3)
    if a.type != b.type or sizes_of(condition) not in ((), sizes_of(a)):
        emitter.fail(f"select cannot choose by {condition.type} between {a.type} and {b.type}")
    return [emitter.op("select", condition, a, b)]


def _clamp(emitter: Emitter, op: Operation, operands: list[Value]) -> list[Value]:
    low, x, high = take(emitter, op, operands, 3)
    for bound in (low, high):
        if sizes_of(bound) not in ((), sizes_of(x)):
            emitter.fail(f"clamp cannot hold {x.type} in {bound.type}")
    return [emitter.op("minimum", emitter.op("maximum", x, low), high)]


def _convert(emitter: Emitter, op: Operation, operands: list[Value]) -> list[Value]:
    (x,) = take(emitter, op, operands, 1)
    if not op.result_types:
        emitter.fail("convert needs a result type")
    target = op.result_types[-1].dtype
    return [x if target == dtype_of(x) else emitter.op("cast", x, dtype=target)]


def _same(emitter: Emitter, op: Operation, operands: list[Value]) -> list[Value]:
    return list(operands)


def take(emitter: Emitter, op: Operation, operands: list[Value], count: int) -> list[Value]:
    """The operands, which must be ``count``."""
    if len(operands) != count:
        emitter.fail(f"{op.name} takes {count} operands, not {len(operands)}")
    return operands


RULES: Mapping[str, Rule] = {
    **{f"stablehlo.{name}": _unary_rule for name in _UNARY},
    **{f"stablehlo.{name}": _binary_rule for name in (*_BINARY, "and", "or", "xor", "remainder")},
    "stablehlo.not": _not,
    "stablehlo.ceil": _ceil,
    "stablehlo.sign": _sign,
    "stablehlo.compare": _compare,
    "stablehlo.select": _select,
    "stablehlo.clamp": _clamp,
    "stablehlo.convert": _convert,
    "stablehlo.optimization_barrier": _same,
}
