"""StableHLO operations that combine elements along axes: reduce, dot_general, dot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from cacheir.ir.dtypes import FLOATS, numpy_dtype
from cacheir.ir.graph import Value
from cacheir_importers.stablehlo.cursor import known_fields
from cacheir_importers.stablehlo.elementwise import binary, take
from cacheir_importers.stablehlo.emitter import Attributes, Emitter, Rule, dtype_of, sizes_of, whole_numbers
from cacheir_importers.stablehlo.shapes import text
from cacheir_importers.stablehlo.syntax import Operation

_KINDS = {"add": "sum", "maximum": "max", "minimum": "min", "and": "all", "or": "any"}
_ON_TRUTHS = {"add": "any", "maximum": "any", "minimum": "all", "multiply": "all", "and": "all", "or": "any"}


def _reduce(emitter: Emitter, op: Operation, operands: list[Value]) -> list[Value]:
    if len(operands) != 2:
        emitter.refuse(f"reduce of {len(operands) // 2} inputs at once is not supported: one is")
    x, init = operands
    attributes = Attributes(emitter, op)
    axes = attributes.numbers("dimensions")
    attributes.finish()
    if sizes_of(init) or dtype_of(init) != dtype_of(x):
        emitter.fail(f"reduce of {x.type} cannot start with {init.type}")
    if len(set(axes)) != len(axes) or not all(0 <= axis < len(sizes_of(x)) for axis in axes):
        emitter.fail(f"reduce has no axes {list(axes)} in {x.type}")
    name = _body(emitter, op)
    kinds = _ON_TRUTHS if dtype_of(x) == "bool" else _KINDS
    if name not in kinds or (dtype_of(x) != "bool" and name in ("and", "or")):
        emitter.refuse(f"reduce by {name} of {dtype_of(x)} is not supported; supported: {', '.join(kinds)}")
    kind = kinds[name]
    if axes:
        x = emitter.op("reduce", x, kind=kind, axes=axes, keepdims=False)
    if not _is_identity(emitter.splat_of(init), kind, dtype_of(x)):
        start = emitter.op("broadcast", init, shape=text(sizes_of(x)))
        x = binary(emitter, name, x, start)
    return [x]


def _body(emitter: Emitter, op: Operation) -> str:
    """What the reduction does with two elements: the short form's word, or the region's one operation."""
    if not op.regions:
        if len(op.words) != 3 or (op.words[0], op.words[2]) != ("applies", "across"):
            emitter.fail("reduce needs 'applies OPERATION across dimensions', or a region")
        return op.words[1].removeprefix("stablehlo.")
    if len(op.regions) != 1:
        emitter.fail("reduce has one region")
    (region,) = op.regions
    names = [argument.name for argument in region.arguments]
    inner = region.operations
    if (
        len(inner) != 2
        or len(names) != 2
        or sorted(inner[0].operands) != sorted(names)
        or len(inner[0].results) != 1
        or inner[1].name != "stablehlo.return"
        or inner[1].operands != (inner[0].results[0][0],)
        or inner[0].attrs
    ):
        emitter.refuse("a reduction is supported where its region holds one operation on its two elements")
    return inner[0].name.removeprefix("stablehlo.")


def _is_identity(value: Any, kind: str, dtype: str) -> bool:
    """Whether a start value changes nothing, so that it need not be combined with the result."""
    if value is None:
        return False
    if kind in ("sum", "any", "all"):
        return bool(value == (1 if kind == "all" else 0)) and not np.signbit(np.float64(value))
    if dtype in FLOATS:
        return bool(value == (-np.inf if kind == "max" else np.inf))
    limits = np.iinfo(numpy_dtype(dtype))
    return bool(value == (limits.min if kind == "max" else limits.max))


def _dot_general(emitter: Emitter, op: Operation, operands: list[Value]) -> list[Value]:
    a, b = take(emitter, op, operands, 2)
    attributes = Attributes(emitter, op)
    fields = known_fields(attributes.get("dot_dimension_numbers"))
    batching, contracting = attributes.get("batching_dims"), attributes.get("contracting_dims")
    if attributes.get("algorithm") is not None:
        emitter.refuse("dot_general with an algorithm is not supported")
    attributes.finish()
    if fields:
        batching = (fields.get("lhs_batching_dimensions", []), fields.get("rhs_batching_dimensions", []))
        contracting = (fields.get("lhs_contracting_dimensions", []), fields.get("rhs_contracting_dimensions", []))
    pairs = []
    none: tuple[list[int], list[int]] = ([], [])
    for what, value in (("batching", batching or none), ("contracting", contracting or none)):
        if not isinstance(value, tuple):
            emitter.fail(f"{what} dimensions are two lists")
        pairs.append([whole_numbers(emitter, part, f"{what} dimensions") for part in value])
    (a_batch, b_batch), (a_sum, b_sum) = pairs
    return [_product(emitter, op, a, b, (a_batch, b_batch), (a_sum, b_sum))]


def _dot(emitter: Emitter, op: Operation, operands: list[Value]) -> list[Value]:
    a, b = take(emitter, op, operands, 2)
    attributes = Attributes(emitter, op)
    attributes.finish()
    if not 1 <= len(sizes_of(a)) <= 2 or not 1 <= len(sizes_of(b)) <= 2:
        emitter.fail(f"dot takes vectors and matrices, not {a.type} and {b.type}")
    return [_product(emitter, op, a, b, ((), ()), ((len(sizes_of(a)) - 1,), (0,)))]


def _product(
    emitter: Emitter,
    op: Operation,
    a: Value,
    b: Value,
    batch: tuple[Sequence[int], Sequence[int]],
    summed: tuple[Sequence[int], Sequence[int]],
) -> Value:
    kind = op.result_types[-1].dtype if op.result_types else dtype_of(a)
    if not {kind, dtype_of(a), dtype_of(b)} <= FLOATS:
        emitter.refuse(f"{op.name} of {dtype_of(a)} and {dtype_of(b)} to {kind} is not supported: floating point is")
    free = []
    for value, outer, inner in ((a, batch[0], summed[0]), (b, batch[1], summed[1])):
        rank, used = len(sizes_of(value)), [*outer, *inner]
        if len(set(used)) != len(used) or not all(0 <= axis < rank for axis in used):
            emitter.fail(f"{op.name} names axes {used} of {value.type}")
        free.append([axis for axis in range(rank) if axis not in used])
    a_sizes, b_sizes = sizes_of(a), sizes_of(b)
    for of_a, of_b in (batch, summed):
        if [a_sizes[axis] for axis in of_a] != [b_sizes[axis] for axis in of_b]:
            emitter.fail(f"{op.name}: the axes {list(of_a)} of {a.type} do not fit {list(of_b)} of {b.type}")
    outer_sizes = [a_sizes[axis] for axis in batch[0]]
    depth = prod(a_sizes[axis] for axis in summed[0])
    rows, columns = (prod(sizes[axis] for axis in axes) for sizes, axes in ((a_sizes, free[0]), (b_sizes, free[1])))
    left = _arranged(emitter, a, [*batch[0], *free[0], *summed[0]], [*outer_sizes, rows, depth], kind)
    right = _arranged(emitter, b, [*batch[1], *summed[1], *free[1]], [*outer_sizes, depth, columns], kind)
    product = emitter.op("matmul", left, right)
    shape = [*outer_sizes, *(a_sizes[axis] for axis in free[0]), *(b_sizes[axis] for axis in free[1])]
    return product if sizes_of(product) == tuple(shape) else emitter.op("reshape", product, shape=text(shape))


def _arranged(emitter: Emitter, x: Value, axes: list[int], shape: list[int], dtype: str) -> Value:
    if axes != list(range(len(axes))):
        x = emitter.op("transpose", x, axes=tuple(axes))
    if sizes_of(x) != tuple(shape):
        x = emitter.op("reshape", x, shape=text(shape))
    return x if dtype_of(x) == dtype else emitter.op("cast", x, dtype=dtype)


RULES: Mapping[str, Rule] = {
    "stablehlo.reduce": _reduce,
    "stablehlo.dot_general": _dot_general,
    "stablehlo.dot": _dot,
}
