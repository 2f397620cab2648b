"""The matrices that a program multiplies by, joined as its kernels join them."""

from __future__ import annotations

from collections.abc import Iterator

from cacheir.ir.types import QuantType, TensorType
from cacheir.schedule.flatten import Launch, flatten
from cacheir.schedule.program import Program

_PRODUCTS = frozenset({"linear", "fused_qkv", "fused_rmsnorm_qkv_rope", "fused_swiglu", "head_argmax"})


def matrices_of(program: Program) -> Iterator[tuple[int, int]]:
    """(rows, columns) of each matrix of a decode step and its heads; gate and up are one, and so are q, k and v."""
    module = program.modules["decode"]
    for graph in (module.main, *module.heads):
        for launch in flatten(program, "decode", graph.name):
            if launch.op.name in _PRODUCTS:
                yield _joined(launch)


def roles_of(program: Program) -> Iterator[tuple[int, int, bool]]:
    """(rows, columns, whether the product is added to the residual stream) of each matrix of main of prompts."""
    for launch in flatten(program, "prefill", program.modules["prefill"].main.name):
        if launch.op.name in _PRODUCTS:
            yield (*_joined(launch), launch.op.name == "linear")


def _joined(launch: Launch) -> tuple[int, int]:
    shapes = [
        tuple(size.evaluate({}) for size in place.type.shape)
        for place in launch.reads
        if place.kind == "weight" and isinstance(place.type, (TensorType, QuantType)) and len(place.type.shape) == 2
    ]
    return sum(shape[0] for shape in shapes), shapes[0][1]
