"""Elementwise ops, embedding and row gathering in torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def embedding(tokens: Tensor, table: Tensor, *, dtype: str, out: Tensor) -> None:
    """tokens [T], table [V, H] -> out [T, H] f32; an id that is none (-1 of a row that failed) reads an end's row."""
    out.copy_(table.index_select(0, tokens.clamp(0, table.shape[0] - 1)))


def gather_rows(x: Tensor, rows: Tensor, *, out: Tensor) -> None:
    """x [T, H], rows [R] -> out [R, H]."""
    torch.index_select(x, 0, rows, out=out)


def add(x: Tensor, y: Tensor, *, out: Tensor) -> None:
    """x, y [...] of shapes that broadcast -> out, x + y; ``out`` may be either."""
    torch.add(x, y, out=out)


def subtract(x: Tensor, y: Tensor, *, out: Tensor) -> None:
    """x, y [...] of shapes that broadcast -> out, x - y; ``out`` may be either."""
    torch.sub(x, y, out=out)


def multiply(x: Tensor, y: Tensor, *, out: Tensor) -> None:
    """x, y [...] of shapes that broadcast -> out, x * y; ``out`` may be either."""
    torch.mul(x, y, out=out)


def divide(x: Tensor, y: Tensor, *, out: Tensor) -> None:
    """x, y [...] of shapes that broadcast -> out, x / y; ``out`` may be either."""
    torch.div(x, y, out=out)


def tanh(x: Tensor, *, out: Tensor) -> None:
    """x -> out of the same shape; ``out`` may be ``x``."""
    torch.tanh(x, out=out)


def silu(x: Tensor, *, out: Tensor) -> None:
    """x -> out of the same shape, x / (1 + exp(-x)); ``out`` may be ``x``."""
    out.copy_(torch.nn.functional.silu(x))


def gelu_tanh(x: Tensor, *, out: Tensor) -> None:
    """x -> out of the same shape, GELU by its tanh approximation; ``out`` may be ``x``."""
    out.copy_(torch.nn.functional.gelu(x, approximate="tanh"))


def swiglu(gate: Tensor, up: Tensor, *, out: Tensor) -> None:
    """gate, up [..., F] -> out [..., F], silu(gate) * up; ``out`` may be either."""
    torch.mul(torch.nn.functional.silu(gate), up, out=out)


def reshape(x: Tensor, *, shape: tuple[Any, ...], out: Tensor) -> None:
    """x [...] -> out [``shape``], the same elements in row-major order; ``out`` may lie on ``x``."""
    if out.data_ptr() != x.data_ptr():
        out.copy_(x.reshape(out.shape))
