"""Reference kernels of the ops that make tensors or move elements."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacheir.errors import IRError
from cacheir.reference.elementwise import OutTypes

Array = NDArray[Any]


def constant(out_types: OutTypes, values: tuple[float, ...], dtype: str, shape: tuple[str, ...]) -> Array:
    """One value for all elements, or one for each."""
    numpy_type, sizes = out_types[0]
    if len(values) == 1:
        return np.full(sizes, values[0], numpy_type)
    return np.array(values, numpy_type).reshape(sizes)


def iota(out_types: OutTypes, shape: tuple[str, ...], axis: int, dtype: str) -> Array:
    """0, 1, 2 … along one axis."""
    numpy_type, sizes = out_types[0]
    axis %= len(sizes)
    counted = np.arange(sizes[axis]).astype(numpy_type)
    return np.broadcast_to(counted.reshape(-1, *(1,) * (len(sizes) - axis - 1)), sizes)


def reshape(x: Array, out_types: OutTypes, shape: tuple[str, ...]) -> Array:
    """The same elements in row-major order."""
    out: Array = x.reshape(out_types[0][1])
    return out


def transpose(x: Array, out_types: OutTypes, axes: tuple[int, ...]) -> Array:
    """Axis i of the result is axis axes[i] of x."""
    out: Array = x.transpose(axes)
    return out


def broadcast(x: Array, out_types: OutTypes, shape: tuple[str, ...]) -> Array:
    """x stretched to the shape."""
    return np.broadcast_to(x, out_types[0][1])


def slice(x: Array, out_types: OutTypes, axis: int, start: int, stop: str) -> Array:
    """A range of one axis."""
    axis %= x.ndim
    size = out_types[0][1][axis]
    if start + size > x.shape[axis]:
        raise IRError(f"slice takes {start} to {start + size} of an axis of {x.shape[axis]}")
    return x[(np.s_[:],) * axis + (np.s_[start : start + size],)]


def concat(*parts: Array, out_types: OutTypes, axis: int) -> Array:
    """Tensors one after the other."""
    return np.concatenate(parts, axis=axis)


def gather(x: Array, indices: Array, out_types: OutTypes, axis: int) -> Array:
    """The chosen entries of an axis. Raises IRError for an index that is not in the axis."""
    outside = (indices < 0) | (indices >= x.shape[axis])
    if outside.any():
        raise IRError(f"gather takes entry {indices[outside][0]} of an axis of {x.shape[axis]}")
    return np.take(x, indices, axis=axis)
