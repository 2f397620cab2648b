"""Running one primitive op by its reference kernel: bf16 in and out, result types worked out, results checked."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from cacheir.errors import IRError
from cacheir.ir.dtypes import numpy_dtype
from cacheir.ir.graph import Attr, Op
from cacheir.ir.opdef import OpDef
from cacheir.ir.types import KVType, Type
from cacheir.plugins import resolve
from cacheir.reference.bf16 import from_bf16, to_bf16
from cacheir.reference.sizes import bind_shapes, known_shape


def call_reference(
    definition: OpDef, op: Op, operands: Sequence[Any], attrs: Mapping[str, Attr], sizes: MutableMapping[str, int]
) -> tuple[Any, ...]:
    """The results of ``op``, whose ``attrs`` have their defaults and no ``$layer`` any more.

    ``sizes`` holds the names in the operands' types; names that the op itself brings, as ``kv_gather`` does, are
    added. Results may be views of operands.

    Raises IRError where the kernel does not give what the op's result types say.
    """
    wide = [_widened(value.type, operand) for value, operand in zip(op.operands, operands)]
    out_types = tuple(_out_type(value.type, sizes) for value in op.results)
    # Infinities and NaN are results like others; NumPy's warnings about them would be noise.
    with np.errstate(all="ignore"):
        outcome = resolve(definition.reference)(*wide, out_types=out_types, **attrs)
    results = outcome if isinstance(outcome, tuple) else (outcome,)
    if len(results) != len(op.results):
        raise IRError(f"the reference kernel of {op.name} gives {len(results)} results, not {len(op.results)}")
    return tuple(
        _narrowed(f"{op.name}: {value}", value.type, result, out_type, sizes)
        for value, result, out_type in zip(op.results, results, out_types)
    )


def _widened(type_: Type, operand: Any) -> Any:
    is_bf16 = isinstance(operand, np.ndarray) and not isinstance(type_, KVType) and type_.dtype == "bf16"
    return from_bf16(operand) if is_bf16 else operand


def _out_type(type_: Type, sizes: MutableMapping[str, int]) -> tuple[np.dtype[Any], tuple[int, ...]] | None:
    if isinstance(type_, KVType):
        return None
    return numpy_dtype("f32" if type_.dtype == "bf16" else type_.dtype), known_shape(type_.shape, sizes)


def _narrowed(whose: str, type_: Type, result: Any, out_type: Any, sizes: MutableMapping[str, int]) -> Any:
    if isinstance(type_, KVType):
        return result
    array = np.asarray(result)
    if array.dtype != out_type[0]:
        raise IRError(f"{whose} must be {out_type[0]}, but its reference kernel gives {array.dtype}")
    bind_shapes([(whose, type_.shape, array.shape)], sizes)
    return to_bf16(array) if type_.dtype == "bf16" else array
