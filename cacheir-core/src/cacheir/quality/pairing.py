"""Which weights of two programs are the same weight of the model, and their values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cacheir.schedule.program import Program

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]


def by_keys(program: Program) -> dict[tuple[str, ...], str]:
    """The stored keys that each weight is made of -> its recipe."""
    return {weight.stored: recipe for recipe, weight in program.weights.items()}


def dense(array: Any) -> F32:
    """What a weight store gave, as f32."""
    import numpy as np

    from cacheir.formats.quant_array import QuantArray
    from cacheir.reference.bf16 import from_bf16

    if isinstance(array, QuantArray):
        return array.dense()
    return from_bf16(array) if array.dtype == np.uint16 else np.asarray(array, np.float32)
