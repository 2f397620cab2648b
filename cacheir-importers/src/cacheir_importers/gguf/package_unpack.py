"""Unpacks the block formats that CacheIR leaves to the `gguf` package: u8 [n, block bytes] to f32 [n, elements]."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize
from numpy.typing import NDArray

Unpack = Callable[[NDArray[np.uint8]], NDArray[np.float32]]

# At most this many blocks at a time: the package's tables of grids make several arrays of eight times the values.
_MOST_BLOCKS = 1024


def _unpacker(kind: Kind) -> Unpack:
    elements, _ = GGML_QUANT_SIZES[kind]

    def unpack(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        # As one row: the package goes through rows sixteen at a time.
        values = np.empty((len(blocks), elements), np.float32)
        for start in range(0, len(blocks), _MOST_BLOCKS):
            part = blocks[start : start + _MOST_BLOCKS]
            values[start : start + len(part)] = dequantize(part.reshape(1, -1), kind).reshape(len(part), elements)
        return values

    return unpack


unpack_iq1_s = _unpacker(Kind.IQ1_S)
unpack_iq1_m = _unpacker(Kind.IQ1_M)
unpack_iq2_xxs = _unpacker(Kind.IQ2_XXS)
unpack_iq2_xs = _unpacker(Kind.IQ2_XS)
unpack_iq2_s = _unpacker(Kind.IQ2_S)
unpack_iq3_xxs = _unpacker(Kind.IQ3_XXS)
unpack_iq3_s = _unpacker(Kind.IQ3_S)
unpack_iq4_nl = _unpacker(Kind.IQ4_NL)
unpack_iq4_xs = _unpacker(Kind.IQ4_XS)
unpack_tq1_0 = _unpacker(Kind.TQ1_0)
unpack_tq2_0 = _unpacker(Kind.TQ2_0)
unpack_mxfp4 = _unpacker(Kind.MXFP4)
unpack_nvfp4 = _unpacker(Kind.NVFP4)
