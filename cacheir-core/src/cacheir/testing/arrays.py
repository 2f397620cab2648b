"""Random arrays for the operands of an op: by type, indices in range, a batch whose parts fit together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacheir.formats.quant_array import QuantArray
from cacheir.formats.table import core_formats
from cacheir.ir.dtypes import FLOATS, numpy_dtype
from cacheir.ir.graph import Attr, Op, Value
from cacheir.ir.opdef import OpDef
from cacheir.ir.types import KVType, QuantType, TensorType, Type
from cacheir.plugins import QuantFormatSpec
from cacheir.reference.bf16 import to_bf16
from cacheir.reference.kv_pool import KVPool
from cacheir.testing.batches import Batch, random_batch

Rng = np.random.Generator


def random_array(rng: Rng, type_: TensorType, sizes: Mapping[str, int] | None = None) -> NDArray[Any]:
    """Normal floating point numbers, small integers (non-negative where unsigned), fair truth values."""
    shape = type_.sizes(sizes or {})
    if type_.dtype in FLOATS:
        values = rng.standard_normal(shape)
        return to_bf16(values) if type_.dtype == "bf16" else values.astype(numpy_dtype(type_.dtype))
    if type_.dtype == "bool":
        return rng.integers(0, 2, shape).astype(np.bool_)
    return rng.integers(0 if type_.dtype.startswith("u") else -4, 5, shape).astype(numpy_dtype(type_.dtype))


def random_quant(rng: Rng, type_: QuantType, formats: Mapping[str, QuantFormatSpec] | None = None) -> QuantArray:
    """Normal numbers rounded into the format; ``formats`` None for core's."""
    known = core_formats() if formats is None else formats
    shape = TensorType(type_.dtype, type_.shape).sizes({})
    return QuantArray.quantize(rng.standard_normal(shape).astype(np.float32), known[type_.format])


def random_pool(rng: Rng, kind: KVType, *, layers: Sequence[int], pages: int, page_tokens: int) -> KVPool:
    """A pool full of normal numbers."""
    pool = KVPool(kind, layers, pages, page_tokens)
    shape = (pages, kind.layers, 2, kind.heads, page_tokens, kind.head_dim)
    pool.write_pages(range(pages), rng.standard_normal(shape).astype(np.float32))
    return pool


def example_op(definition: OpDef, types: Sequence[Type], attrs: Mapping[str, Attr]) -> Op:
    """The op on operands of ``types``, named as the definition names them."""
    names = [operand.name for operand in definition.operands]
    names += [f"{names[-1]}.{number}" for number in range(1, 1 + len(types) - len(names))]
    operands = tuple(Value(name, type_, _origin(type_)) for name, type_ in zip(names, types))
    results = zip(definition.results, definition.infer_types(types, attrs))
    filled = definition.with_defaults(attrs)
    made = tuple(Value(f"{name}.result", type_) for name, type_ in results)
    return Op(definition.name, operands, made, tuple(sorted(filled.items())))


def random_operands(rng: Rng, op: Op, formats: Mapping[str, QuantFormatSpec] | None = None) -> list[Any]:
    """Operands for an op of constant sizes, as ``example_op`` makes it: arrays, ``QuantArray``, ``KVPool``.

    Operands that are indices by their core name (``tokens``, ``indices``, ``rows``, those of a batch) are valid ones.
    """
    shapes = {value.name: _shape(value.type) for value in op.operands}
    batch = _batch_of(rng, shapes)
    layer = op.attr("layer", 0)
    operands: list[Any] = []
    for value in op.operands:
        if isinstance(value.type, KVType):
            first = layer if isinstance(layer, int) else 0
            pages = batch.pages if batch else 4
            page_tokens = batch.page_tokens if batch else 3
            # The layer asked for is the pool's last one, so that a kernel which ignores it is caught.
            layers = [*range(first + 1, first + value.type.layers), first]
            operands.append(random_pool(rng, value.type, layers=layers, pages=pages, page_tokens=page_tokens))
        elif isinstance(value.type, QuantType):
            operands.append(random_quant(rng, value.type, formats))
        elif batch is not None and hasattr(batch, value.name):
            operands.append(getattr(batch, value.name))
        elif value.name in _PARAMETERS and op.name == "sample":
            operands.append(_PARAMETERS[value.name](rng, shapes[value.name][0]))
        else:
            limit = _index_limit(op, value.name, shapes)
            if limit is None:
                operands.append(random_array(rng, value.type))
            else:
                operands.append(rng.integers(0, limit, shapes[value.name]).astype(np.int32))
    return operands


def _batch_of(rng: Rng, shapes: Mapping[str, tuple[int, ...]]) -> Batch | None:
    """A batch for the operands of one op, None where none of them is part of one."""
    if not {"page_table", "row_starts", "slots"} & set(shapes):
        return None
    table = shapes.get("page_table")
    tokens = next((shapes[name][0] for name in ("positions", "slots") if name in shapes), None)
    rows = table[0] if table else shapes["row_starts"][0] - 1 if "row_starts" in shapes else 2
    # kv_gather has rows, but no tokens of this step.
    return random_batch(
        rng, tokens=rows if tokens is None else tokens, rows=rows, pages_per_row=table[1] if table else 4
    )


def _index_limit(op: Op, name: str, shapes: Mapping[str, tuple[int, ...]]) -> int | None:
    """One more than the largest valid index of an operand that holds indices, None for other operands."""
    if (op.name, name) == ("gather", "indices"):
        axis = op.attr("axis", 0)
        assert isinstance(axis, int)
        return shapes["x"][axis]
    if (op.name, name) == ("embedding", "tokens"):
        return shapes["table"][0]
    return shapes["x"][0] if (op.name, name) == ("gather_rows", "rows") else None


_PARAMETERS = {
    "temperature": lambda rng, rows: rng.choice([0.0, 0.5, 1.0, 1.7], rows).astype(np.float32),
    "top_k": lambda rng, rows: rng.integers(0, 12, rows).astype(np.int32),
    "top_p": lambda rng, rows: rng.choice([0.3, 0.9, 1.0], rows).astype(np.float32),
    "min_p": lambda rng, rows: rng.choice([0.0, 0.1], rows).astype(np.float32),
    "seed": lambda rng, rows: rng.integers(0, 2**63, rows).astype(np.uint64),
    "position": lambda rng, rows: rng.integers(0, 2000, rows).astype(np.int32),
    "draw": lambda rng, rows: rng.integers(0, 50, rows).astype(np.int32),
}


def _shape(type_: Type) -> tuple[int, ...]:
    return () if isinstance(type_, KVType) else tuple(size.evaluate({}) for size in type_.shape)


def _origin(type_: Type) -> str:
    return "state" if isinstance(type_, KVType) else "weight" if isinstance(type_, QuantType) else "input"
