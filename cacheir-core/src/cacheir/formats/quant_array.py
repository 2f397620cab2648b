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
    """``blocks`` u8 [rows, bytes of a row] of ``format``; ``shape`` is logical, [..., columns].

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
        blocks = np.empty((rows, row_bytes), np.uint8)
        matrix = values.reshape(rows, values.shape[-1])
        with np.errstate(invalid="ignore", over="ignore"):
            for part in _parts(rows, values.shape[-1]):
                packed = pack(_as_blocks(matrix[part], format))
                if not np.isfinite(unpack(packed)).all():
                    raise ModelError(f"values that are not finite, or too large for a scale, cannot be {format.name}")
                blocks[part] = packed.reshape(-1, row_bytes)
        return cls(blocks, format, values.shape)

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
        columns = self.shape[-1]
        if self.format.block and out.flags.c_contiguous and columns % self.format.block == 0:
            flat = self.blocks.reshape(-1, self.format.block_bytes)
            parts = out.reshape(-1, self.format.block)
            for part in _parts(len(flat), self.format.block):
                parts[part] = self._unpacked(flat[part])
        elif out.flags.c_contiguous or out.ndim == 2:
            matrix = out.reshape(-1, columns) if out.flags.c_contiguous else out  # some columns of a wider matrix
            for rows in _parts(len(matrix), columns):
                matrix[rows] = self._rows(self.blocks[rows])
        else:
            out[...] = self.dense()
        return out

    def rows(self, indices: NDArray[np.integer]) -> NDArray[np.float32]:
        """The values of some rows, f32 [indices, columns]; IndexError for a row there is not."""
        return self._rows(self.blocks[indices.reshape(-1)]).reshape(*indices.shape, self.shape[-1])

    def _rows(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Whole rows of blocks as f32 [rows, columns]."""
        if self.format.block == 0:
            return self._unpacked(blocks)
        flat = self._unpacked(np.ascontiguousarray(blocks).reshape(-1, self.format.block_bytes))
        filled = self.format.row_blocks(self.shape[-1]) * self.format.block
        return flat.reshape(len(blocks), filled)[:, : self.shape[-1]]

    def _unpacked(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        result: NDArray[np.float32] = resolve(self.format.unpack)(np.ascontiguousarray(blocks))
        return result

    def __repr__(self) -> str:
        return f"QuantArray({self.format.name}, {list(self.shape)})"


def storage_shape(format: QuantFormatSpec, shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows, and bytes of a row, of a tensor of ``shape`` in ``format``.

    Raises ModelError where a row is not a whole number of blocks and has to be.
    """
    try:
        if any(size < 0 for size in shape):
            raise ValueError
        return prod(shape[:-1]), format.row_bytes(shape[-1])
    except (IndexError, ValueError):
        raise ModelError(
            f"a tensor of shape {list(shape)} cannot be {format.name}: rows are blocks of {format.block}"
        ) from None


def _as_blocks(rows: NDArray[Any], format: QuantFormatSpec) -> NDArray[np.float32]:
    """Rows [n, columns] as what ``pack`` takes: f32 [blocks, block], rows filled up with their last element."""
    if format.block == 0:
        return np.ascontiguousarray(rows, np.float32)
    filled = format.row_blocks(rows.shape[1]) * format.block
    if filled == rows.shape[1]:
        return np.ascontiguousarray(rows, np.float32).reshape(-1, format.block)
    padded = np.empty((len(rows), filled), np.float32)
    padded[:, : rows.shape[1]] = rows
    padded[:, rows.shape[1] :] = rows[:, -1:]  # changes neither the least nor the largest of the block
    return padded.reshape(-1, format.block)


def _parts(count: int, elements: int) -> Iterator[slice]:
    """Ranges of ``count`` things of ``elements`` each, about ``_CHUNK_ELEMENTS`` together."""
    step = max(1, _CHUNK_ELEMENTS // max(1, elements))
    return (slice(start, start + step) for start in range(0, count, step))
