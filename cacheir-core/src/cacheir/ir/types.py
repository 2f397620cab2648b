"""The three kinds of type a value can have: a tensor, a quantised tensor, a KV state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cacheir.ir.dims import Dim, DimLike, dim
from cacheir.ir.dtypes import dtype_bytes, is_dtype


@dataclass(frozen=True, slots=True)
class TensorType:
    """A dense tensor, ``f32[T, 576]``."""

    dtype: str
    shape: tuple[Dim, ...]

    @staticmethod
    def of(dtype: str, *shape: DimLike) -> TensorType:
        """A type from sizes written as integers or text."""
        return TensorType(dtype, tuple(dim(size) for size in shape))

    def sizes(self, bound: Mapping[str, int]) -> tuple[int, ...]:
        """The shape in integers where each named size has the value in ``bound``."""
        return tuple(size.evaluate(bound) for size in self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class QuantType:
    """A tensor stored in a block format, ``q4_1<f32>[576, 576]``.

    ``dtype`` is what it unpacks to and ``shape`` is logical. ``format`` names a ``QuantFormat`` record; blocks
    run along the last axis.
    """

    format: str
    dtype: str
    shape: tuple[Dim, ...]

    @staticmethod
    def of(format: str, dtype: str, *shape: DimLike) -> QuantType:
        """A type from sizes written as integers or text."""
        return QuantType(format, dtype, tuple(dim(size) for size in shape))

    @property
    def dense(self) -> TensorType:
        """The type after unpacking."""
        return TensorType(self.dtype, self.shape)

    def __str__(self) -> str:
        return f"{self.format}<{self.dtype}>[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class KVType:
    """The keys and values of one group of layers, as one linear value: each op that changes it yields the next.

    ``layers`` counts the layers of the group, ``heads`` the key/value heads, ``dtype`` is the storage format
    (f32, f16, bf16; int8 and fp8 with one scale by token and head). ``window`` is how many of the
    latest positions stay attended, 0 for all; ``sinks`` how many of the first ones stay attended besides.
    """

    layers: int
    heads: int
    head_dim: int
    dtype: str
    window: int = 0
    sinks: int = 0

    @property
    def token_bytes(self) -> int:
        """Bytes of the keys and values of one token in one layer, with the f32 scales that int8 and fp8 have."""
        if is_dtype(self.dtype):
            return 2 * self.heads * self.head_dim * dtype_bytes(self.dtype)
        return 2 * self.heads * (self.head_dim + 4)

    def __str__(self) -> str:
        window = f", window={self.window}" if self.window else ""
        window += f", sinks={self.sinks}" if self.sinks else ""
        return f"kv<layers={self.layers}, heads={self.heads}, head_dim={self.head_dim}, {self.dtype}{window}>"


Type = TensorType | QuantType | KVType
