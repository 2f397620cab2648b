"""Running graphs and single ops by their meaning, for tests; graphs run by ``cacheir.reference.interpreter``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cacheir.formats.quant_array import QuantArray
from cacheir.ir.dtypes import DTYPES, numpy_dtype
from cacheir.ir.opdef import OpDef
from cacheir.ir.types import QuantType, TensorType, Type
from cacheir.reference.interpreter import Interpreter, Observer, Site, interpret
from cacheir.reference.kv_pool import KVPool
from cacheir.testing.arrays import example_op

__all__ = ["Interpreter", "KVPool", "Observer", "Site", "evaluate", "interpret", "type_of"]


def evaluate(
    name: str,
    *operands: Any,
    ops: Mapping[str, OpDef] | None = None,
    dtypes: Mapping[int, str] | None = None,
    **attrs: Any,
) -> Any:
    """The result of op ``name`` on arrays, ``QuantArray`` and ``KVPool``, or the tuple of its results.

    ``ops`` None for core's; ``dtypes`` gives the element type of an operand where its array does not tell it (bf16).
    Pools are changed.
    """
    if ops is None:
        from cacheir.ops.table import core_ops

        ops = core_ops()
    types = [type_of(operand, (dtypes or {}).get(number, "")) for number, operand in enumerate(operands)]
    results = Interpreter(ops).apply(example_op(ops[name], types, attrs), operands, {})
    return results[0] if len(results) == 1 else results


def type_of(operand: Any, dtype: str = "") -> Type:
    """The type of an array, a ``QuantArray`` or a ``KVPool``; ``dtype`` where the array does not tell it."""
    if isinstance(operand, KVPool):
        return operand.kind
    if isinstance(operand, QuantArray):
        return QuantType.of(operand.format.name, dtype or operand.format.dtype, *operand.shape)
    array = np.asarray(operand)
    # uint16 is taken for u16, since bf16 cannot be told from it.
    found = dtype or next(name for name in DTYPES if name != "bf16" and numpy_dtype(name) == array.dtype)
    return TensorType.of(found, *array.shape)
