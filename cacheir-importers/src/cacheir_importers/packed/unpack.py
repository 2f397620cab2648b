"""The unpackers of quantised checkpoints, each a formula over whole tensors; all work out float32 and round once.

Letters: K inputs, N outputs, G groups of inputs. Formats: AutoAWQ's gemm layout, GPTQ's (AutoGPTQ and GPTQModel),
compressed-tensors' ``pack-quantized``, ``int-quantized`` and ``float-quantized``; E4M3 as in the OCP 8-bit floating
point specification (no infinities, NaN is 0x7F and 0xFF).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacheir.errors import MalformedModelError
from cacheir.ir.dtypes import numpy_dtype
from cacheir.reference.bf16 import from_bf16

Array = NDArray[Any]
# AWQ: the output column of each nibble of a word, lowest first.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def unpack_awq(
    qweight: Array,
    qzeros: Array,
    scales: Array,
    *,
    dtype: str,
    shape: tuple[int, ...],
    group: int,
    rows: tuple[int, int] | None = None,
) -> Array:
    """i32 [K, N / 8], i32 [G, N / 8], float [G, N] -> [N, K]: (q - zero) * scale."""
    inputs = qweight.shape[0]
    place = np.argsort(AWQ_ORDER)
    values, zeros = (_fields(words, 4)[:, :, place].reshape(len(words), -1) for words in (qweight, qzeros))
    groups = np.arange(inputs) // group
    dense = (values.astype(np.float32) - zeros[groups]) * _wide(scales)[groups]
    return _finish(dense.T, dtype, shape, rows)


def unpack_gptq(
    qweight: Array,
    qzeros: Array,
    scales: Array,
    g_idx: Array | None = None,
    *,
    dtype: str,
    shape: tuple[int, ...],
    bits: int,
    group: int,
    less: int,
    symmetric: bool,
    rows: tuple[int, int] | None = None,
) -> Array:
    """i32 [K * bits / 32, N], i32 [G, N * bits / 32], float [G, N], i32 [K] -> [N, K]: (q - zero) * scale.

    ``less`` is what the stored zero points lack: 1 in the first format, 0 in the second; they count modulo 2 to the
    bits. Raises MalformedModelError for a group that does not exist, and where a symmetric model's zero points are not
    in the middle: then the format is labelled wrong.
    """
    values = np.moveaxis(_fields(qweight, bits), 2, 1).reshape(-1, qweight.shape[1])
    zeros = (_fields(qzeros, bits).reshape(len(qzeros), -1) + less) % (1 << bits)
    middle = 1 << bits - 1
    if symmetric and zeros.size and (zeros != middle).any():
        found = int(zeros[zeros != middle][0])
        raise MalformedModelError(
            f"a symmetric GPTQ weight has zero points of {found}, and {middle} is the middle of {bits} bits",
            hint=f"set checkpoint_format to {'gptq_v2' if less else 'gptq'!r} in quantization_config",
        )
    inputs = len(values)
    groups = _group_of(g_idx, inputs, group, len(scales))
    dense = (values.astype(np.float32) - zeros[groups].astype(np.float32)) * _wide(scales)[groups]
    return _finish(dense.T, dtype, shape, rows)


def unpack_compressed(
    words: Array,
    scales: Array,
    *others: Array,
    dtype: str,
    shape: tuple[int, ...],
    bits: int,
    group: int,
    rows: tuple[int, int] | None = None,
) -> Array:
    """i32 [N, ceil(K * bits / 32)], float [N, G] -> [N, K]: (q - 2^(bits - 1) - zero) * scale.

    ``others`` are zero points, i32 [ceil(N * bits / 32), G], and the group of each input, i32 [K], where there are any.
    """
    middle = 1 << bits - 1
    values = _fields(words, bits).reshape(len(words), -1).astype(np.float32) - middle
    indices = [other for other in others if other.ndim == 1]
    groups = _group_of(indices[0] if indices else None, values.shape[1], group, scales.shape[1])
    for packed in (other for other in others if other.ndim == 2):
        zeros = np.moveaxis(_fields(packed, bits), 2, 1).reshape(-1, packed.shape[1])[: len(words)]
        values = values - (zeros.astype(np.float32) - middle)[:, groups]
    return _finish(values * _wide(scales)[:, groups], dtype, shape, rows)


def unpack_int8(values: Array, scales: Array, **attrs: Any) -> Array:
    """i8 [N, K] and scales of blocks -> [N, K]: q * scale."""
    return _scaled(values.astype(np.float32), scales, **attrs)


def unpack_fp8(values: Array, scales: Array, **attrs: Any) -> Array:
    """u8 [N, K], the bits of E4M3 numbers, and scales of blocks -> [N, K]: q * scale."""
    return _scaled(E4M3[values], scales, **attrs)


def _scaled(
    values: Array,
    scales: Array,
    *,
    dtype: str,
    shape: tuple[int, ...],
    block_rows: int,
    block_columns: int,
    rows: tuple[int, int] | None = None,
) -> Array:
    count = -(-values.shape[0] // block_rows), -(-values.shape[1] // block_columns)
    wide = _wide(scales).reshape(count)
    by_row = np.arange(values.shape[0]) // block_rows
    by_column = np.arange(values.shape[1]) // block_columns
    return _finish(values * wide[by_row][:, by_column], dtype, shape, rows)


def _e4m3() -> NDArray[np.float32]:
    bits = np.arange(256)
    exponent, fraction = bits >> 3 & 15, (bits & 7).astype(np.float64)
    size = np.where(exponent == 0, fraction / 8 * 2.0**-6, (1 + fraction / 8) * 2.0 ** (exponent - 7.0))
    size = np.where(bits & 127 == 127, np.nan, size)
    return np.where(bits & 128, -size, size).astype(np.float32)


E4M3 = _e4m3()


def _fields(words: Array, bits: int) -> Array:
    """i32 [a, b] -> i32 [a, b, 32 / bits], the lowest bits first."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    return (words.view(np.uint32)[:, :, None] >> shifts & ((1 << bits) - 1)).astype(np.int32)


def _group_of(g_idx: Array | None, inputs: int, group: int, groups: int) -> Array:
    if g_idx is None:
        return np.arange(inputs) // group
    outside = (g_idx < 0) | (g_idx >= groups)
    if outside.any():
        raise MalformedModelError(
            f"g_idx puts input {int(np.argmax(outside))} into group {int(g_idx[outside][0])} of {groups}"
        )
    return g_idx


def _wide(scales: Array) -> NDArray[np.float32]:
    # bf16 has no type of its own in NumPy: it is held as its bits.
    return from_bf16(scales) if scales.dtype == np.uint16 else scales.astype(np.float32)


def _finish(dense: Array, dtype: str, shape: tuple[int, ...], rows: tuple[int, int] | None) -> Array:
    wanted = dense if rows is None else dense[rows[0] : rows[1]]
    if wanted.shape != shape:
        raise MalformedModelError(f"a packed weight unpacks to {list(wanted.shape)}, and {list(shape)} is needed")
    return np.ascontiguousarray(wanted, numpy_dtype(dtype))
