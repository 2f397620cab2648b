"""A quantised tensor in memory: its raw blocks, which may be a mapped file, and what they mean."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacheir.errors import MalformedModelError, ModelError
from cacheir.plugins import QuantFormatSpec, resolve

# Blocks are unpacked this many elements at a time, so that what lies in between stays in the processor's cache.
_CHUNK_ELEMENTS = 1 << 18


class QuantArray:
    """``blocks`` u8 [rows, blocks_per_row * block_bytes] of ``format``; ``shape`` is logical, [..., columns].

    ``rows`` is the product of all axes but the last; blocks run along the last axis and do not cross rows. The blocks
    are never copied and never written.
    """

    __slots__ = ("blocks", "format", "shape")

    def __init__(self, blocks: NDArray[np.uint8], format: QuantFormatSpec, shape: tuple[int, ...]) -> None:
        """Raises MalformedModelError where the blocks do not have the size that the shape needs."""
        rows, row_bytes = storage_shape(format, shape)
        if blocks.dtype != np.uint8 or blocks.size != rows * row_bytes:
            raise MalformedModelError(
                f"a {format.name} tensor of shape {list(shape)} takes {rows * row_bytes} bytes, "
                f"but {blocks.nbytes} bytes of {blocks.dtype} were given"
            )
        self.blocks = blocks.reshape(rows, row_bytes)
        self.format = format
        self.shape = shape

    @classmethod
    def quantize(cls, values: NDArray[Any], format: QuantFormatSpec) -> QuantArray:
        """``values`` float [..., columns] rounded into ``format``.

        Raises ModelError where the format can only be read, or a value does not fit its scales.
        """
        if format.pack is None:
            raise ModelError(f"format {format.name} can be read but not written")
        rows, row_bytes = storage_shape(format, values.shape)
        pack, unpack = resolve(format.pack), resolve(format.unpack)
        blocks = np.empty((rows * row_bytes // format.block_bytes, format.block_bytes), np.uint8)
        flat = values.reshape(-1, format.block)
        with np.errstate(invalid="ignore", over="ignore"):
            for part in _parts(len(blocks), format.block):
                blocks[part] = pack(np.ascontiguousarray(flat[part], np.float32))
                if not np.isfinite(unpack(blocks[part])).all():
                    raise ModelError(f"values that are not finite, or too large for a scale, cannot be {format.name}")
        return cls(blocks.reshape(rows, row_bytes), format, values.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks."""
        return self.blocks.nbytes

    @property
    def ndim(self) -> int:
        """How many axes the logical shape has."""
        return len(self.shape)

    def dense(self, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """The values, float32 [shape], or written into ``out`` of that shape and any floating point type."""
        if out is None:
            out = np.empty(self.shape, np.float32)
        elif out.shape != self.shape:
            raise ValueError(f"out has the shape {list(out.shape)}, not {list(self.shape)}")
        if out.flags.c_contiguous:
            flat = self.blocks.reshape(-1, self.format.block_bytes)
            parts = out.reshape(-1, self.format.block)
            for part in _parts(len(flat), self.format.block):
                parts[part] = self._unpacked(flat[part])
        elif out.ndim == 2:  # some columns of a wider matrix
            for rows in _parts(len(out), self.shape[-1]):
                out[rows] = self._unpacked(self.blocks[rows]).reshape(-1, self.shape[-1])
        else:
            out[...] = self.dense()
        return out

    def rows(self, indices: NDArray[np.integer]) -> NDArray[np.float32]:
        """The values of some rows, f32 [indices, columns]; IndexError for a row there is not."""
        return self._unpacked(self.blocks[indices.reshape(-1)]).reshape(*indices.shape, self.shape[-1])

    def _unpacked(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        flat = np.ascontiguousarray(blocks).reshape(-1, self.format.block_bytes)
        result: NDArray[np.float32] = resolve(self.format.unpack)(flat)
        return result

    def __repr__(self) -> str:
        return f"QuantArray({self.format.name}, {list(self.shape)})"


def storage_shape(format: QuantFormatSpec, shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows, and bytes of a row, of a tensor of ``shape`` in ``format``.

    Raises ModelError where a row is not a whole number of blocks.
    """
    if not shape or any(size < 0 for size in shape) or shape[-1] % format.block:
        raise ModelError(f"a tensor of shape {list(shape)} cannot be {format.name}: rows are blocks of {format.block}")
    return prod(shape[:-1]), shape[-1] // format.block * format.block_bytes


def _parts(count: int, elements: int) -> Iterator[slice]:
    """Ranges of ``count`` things of ``elements`` each, about ``_CHUNK_ELEMENTS`` together."""
    step = max(1, _CHUNK_ELEMENTS // max(1, elements))
    return (slice(start, start + step) for start in range(0, count, step))
