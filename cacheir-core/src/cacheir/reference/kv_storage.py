"""How keys and values lie in a pool: numbers of one type, or for int8 and fp8 codes with a scale by token and head."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacheir.formats.rows import HEADER_BYTES, pack_fp8_e4m3, pack_int8, unpack_fp8_e4m3, unpack_int8
from cacheir.quick_dataclass import dataclass
from cacheir.reference.bf16 import from_bf16, to_bf16

F32 = NDArray[np.float32]

_DENSE = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}
# A head's vector is a row of the weight format: its scale depends on nothing but that token and that head.
_CODES = {"int8": (pack_int8, unpack_int8), "fp8": (pack_fp8_e4m3, unpack_fp8_e4m3)}
FORMATS = (*_DENSE, *_CODES)


@dataclass(frozen=True)
class KVStorage:
    """The storage format ``name``, one of ``FORMATS``."""

    name: str

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy type of a pool."""
        return np.dtype(_DENSE.get(self.name, np.uint8))

    def width(self, head_dim: int) -> int:
        """Elements of a pool that hold a vector of ``head_dim``."""
        return head_dim if self.name in _DENSE else HEADER_BYTES + head_dim

    def encode(self, x: NDArray[Any]) -> NDArray[Any]:
        """Float [..., head_dim] as the pool holds it, [..., width]. What is not finite stays so."""
        if self.name == "bf16":
            return to_bf16(np.asarray(x, np.float32))
        if self.name in _DENSE:
            return x.astype(self.dtype, copy=False)
        pack = _CODES[self.name][0]
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            rows = pack(np.ascontiguousarray(x, np.float32).reshape(-1, x.shape[-1]))
        return rows.reshape(*x.shape[:-1], HEADER_BYTES + x.shape[-1])

    def decode(self, stored: NDArray[Any]) -> F32:
        """What ``encode`` made, f32 [..., head_dim]; f32 itself is not copied."""
        if self.name == "bf16":
            return from_bf16(stored)
        if self.name in _DENSE:
            return stored.astype(np.float32, copy=False)
        unpack = _CODES[self.name][1]
        with np.errstate(invalid="ignore"):
            rows = unpack(np.ascontiguousarray(stored).reshape(-1, stored.shape[-1]))
        return rows.reshape(*stored.shape[:-1], stored.shape[-1] - HEADER_BYTES)
