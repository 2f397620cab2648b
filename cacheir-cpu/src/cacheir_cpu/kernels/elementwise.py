"""Elementwise ops, embedding and row gathering."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]


def embedding(tokens: I32, table: F32, *, dtype: str, out: F32) -> None:
    """tokens [T], table [V, H] -> out [T, H]; ``dtype`` is f32, others are refused."""
    np.take(table, tokens, axis=0, out=out, mode="clip")


def gather_rows(x: F32, rows: I32, *, out: F32) -> None:
    """x [T, H], rows [R] -> out [R, H]."""
    np.take(x, rows, axis=0, out=out, mode="clip")


def add(x: F32, y: F32, *, out: F32) -> None:
    """x, y [...] of shapes that broadcast -> out [...], x + y; ``out`` may be either."""
    np.add(x, y, out=out)


def multiply(x: F32, y: F32, *, out: F32) -> None:
    """x, y [...] of shapes that broadcast -> out [...], x * y; ``out`` may be either."""
    np.multiply(x, y, out=out)


def subtract(x: F32, y: F32, *, out: F32) -> None:
    """x, y of shapes that broadcast -> out, x - y."""
    np.subtract(x, y, out=out)


def divide(x: F32, y: F32, *, out: F32) -> None:
    """x, y of shapes that broadcast -> out, x / y; infinities and NaN are results like others."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        np.divide(x, y, out=out)


def tanh(x: F32, *, out: F32) -> None:
    """x -> out of the same shape."""
    np.tanh(x, out=out)


def gelu_tanh(x: F32, *, out: F32) -> None:
    """x -> out of the same shape, x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))."""
    inner = x * x
    inner *= np.float32(0.044715)
    inner += np.float32(1)
    inner *= x
    inner *= np.float32(0.7978845608028654)
    np.tanh(inner, out=inner)
    inner += np.float32(1)
    inner *= np.float32(0.5)
    np.multiply(inner, x, out=out)


def silu(x: F32, *, out: F32) -> None:
    """x [...] -> out [...], x / (1 + exp(-x)); ``out`` may be ``x``."""
    gate = np.negative(x)
    with np.errstate(over="ignore"):  # exp of a large number is inf, and x / inf is the right 0
        np.exp(gate, out=gate)
    gate += np.float32(1)
    np.divide(x, gate, out=out)


def swiglu(gate: F32, up: F32, *, out: F32) -> None:
    """gate, up [..., F] -> out [..., F], silu(gate) * up; ``out`` may be either."""
    activated = np.empty_like(gate)
    silu(gate, out=activated)
    np.multiply(activated, up, out=out)


def reshape(x: F32, *, shape: tuple[str, ...], out: F32) -> None:
    """x [...] -> out [``shape``], the same elements in row-major order."""
    out[...] = x.reshape(out.shape)
