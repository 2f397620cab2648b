"""Bytes that a kernel takes for itself while it runs, beside the buffers of the memory plan; f32 throughout."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from cacheir.ir import Op, TensorType, Value

# Keys of a row: the size that the IR has no name for in a step, as costs spell it.
KEYS = "S"
_QUERY_BLOCK = 128  # attention.QUERY_BLOCK, which would import NumPy


def stacked_products(op: Op, sizes: Mapping[str, int]) -> int:
    """The products of all stacked weights side by side: as much as the results together, twice for gate and up."""
    twice = 2 if op.name.endswith("swiglu") else 1
    own = 4 * twice * sum(_elements(value, sizes) for value in op.results)
    # A norm inside makes a copy of its rows, a rotation one of q and k.
    return own + (own + 4 * _elements(op.operands[0], sizes) if "rmsnorm" in op.name else 0)


def logits(op: Op, sizes: Mapping[str, int]) -> int:
    """Logits of all rows, which the op does not give away."""
    vocabulary = op.operands[1].type
    rows = _elements(op.results[0], sizes)
    return 4 * rows * int(str(vocabulary.shape[0])) if not hasattr(vocabulary, "heads") else 0


def scores(op: Op, sizes: Mapping[str, int]) -> int:
    """Scores of a block of queries against all keys, what hides some of them, and the queries in another order."""
    tokens, heads, head_dim = _shape(op.operands[0], sizes)
    block = min(tokens, _QUERY_BLOCK) if op.name.endswith("prefill") else 1
    return block * sizes[KEYS] * (4 * heads + 1) + 3 * 4 * block * heads * head_dim


def activation(op: Op, sizes: Mapping[str, int]) -> int:
    """One array like the result."""
    return 4 * sum(_elements(value, sizes) for value in op.results)


def _shape(value: Value, sizes: Mapping[str, int]) -> tuple[int, ...]:
    assert isinstance(value.type, TensorType)
    return value.type.sizes(sizes)


def _elements(value: Value, sizes: Mapping[str, int]) -> int:
    return prod(_shape(value, sizes))
