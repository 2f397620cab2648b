"""A Triton product of many rows with gate and up, whose output is silu(gate) * up: what lies between is never stored.

Programs walk over tiles and fetch them by the copy engine of Hopper and later (tensor descriptors). A tile of the
matrix is some rows of gate and the same rows of up, so that both sums of an output meet in one program.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped, no-any-return"
# Triton reads its own annotations: tl.constexpr says what is compiled in.

from __future__ import annotations

import os
from functools import lru_cache

import triton
import triton.language as tl
from torch import Tensor
from torch import device as device_
from torch.cuda import get_device_capability, get_device_properties
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

from cacheir_cuda.kernels.launching import launch
from cacheir_cuda.kernels.triton_dot import dot

# Triton's interpreter takes no loop bounds that are tensors, and pipelining wants a counted loop.
_COUNTED = os.environ.get("TRITON_INTERPRET") != "1"
_TOKENS, _ROWS, _COLUMNS = 128, 128, 64
_GROUP = 16  # tiles of tokens that meet the same rows of the matrix one after the other, so that L2 has them


@triton.jit
def _gated_tile(x, weight, out, tile, rows, count, WIDTH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
                BK: tl.constexpr, GROUP: tl.constexpr):  # fmt: skip
    above, beside = tl.cdiv(rows, BM), tl.cdiv(count, BN)
    first = tile // (GROUP * beside) * GROUP
    size = tl.minimum(above - first, GROUP)
    m = (first + tile % (GROUP * beside) % size) * BM
    n = tile % (GROUP * beside) // size * BN
    total = tl.zeros((BM, 2 * BN), tl.float32)
    for k in range(0, WIDTH, BK):
        both = weight.load([0, n, k]).reshape(2 * BN, BK)
        total = dot(x.load([m, k]), tl.trans(both), total, "tf32")
    gate, up = tl.split(tl.permute(tl.reshape(total, (BM, 2, BN)), (0, 2, 1)))
    made = gate / (1.0 + tl.exp(-gate)) * up
    out.store([m, n], made.to(out.dtype))


@triton.jit(do_not_specialize=["rows"])
def _gated_product(x, weight, out, rows, count, WIDTH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
                   BK: tl.constexpr, GROUP: tl.constexpr, PROGRAMS: tl.constexpr, COUNTED: tl.constexpr,
                   PDL: tl.constexpr):  # fmt: skip
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    tiles = tl.cdiv(rows, BM) * tl.cdiv(count, BN)
    if COUNTED:
        for tile in tl.range(tl.program_id(0), tiles, PROGRAMS, flatten=True):
            _gated_tile(x, weight, out, tile, rows, count, WIDTH, BM, BN, BK, GROUP)
    else:
        tile = tl.program_id(0)
        while tile < tiles:
            _gated_tile(x, weight, out, tile, rows, count, WIDTH, BM, BN, BK, GROUP)
            tile += PROGRAMS


def takes(weight: Tensor) -> bool:
    """Whether the copy engine is there, and can fetch the matrix [2 F, K] and store rows of F: by whole 16 bytes."""
    rows, width = weight.shape
    whole = width * weight.element_size() % 16 == 0 and rows // 2 * weight.element_size() % 16 == 0
    return whole and weight.element_size() == 2 and has_copy_engine(weight.device)


@lru_cache(maxsize=64)
def has_copy_engine(device: device_) -> bool:
    """Whether kernels can fetch tiles by descriptors: Hopper and later, and Triton's interpreter."""
    return device.type == "cpu" or get_device_capability(device) >= (9, 0)


def gated_product(x: Tensor, weight: Tensor, out: Tensor, *, pdl: bool = False) -> None:
    """x [T, K], weight [2 F, K] of gate and up, all of one type of 16 bits -> out [T, F], silu(gate) * up."""
    (rows, count), width = out.shape, weight.shape[1]
    programs = get_device_properties(x.device).multi_processor_count if x.is_cuda else 3
    launch(
        _gated_product, (programs,), TensorDescriptor.from_tensor(x, [_TOKENS, _COLUMNS]),
        TensorDescriptor.from_tensor(weight.view(2, count, width), [2, _ROWS, _COLUMNS]),
        TensorDescriptor.from_tensor(out, [_TOKENS, _ROWS]), rows, count, WIDTH=width, BM=_TOKENS, BN=_ROWS,
        BK=_COLUMNS, GROUP=_GROUP, PROGRAMS=programs, COUNTED=_COUNTED, pdl=pdl, num_warps=8, num_stages=3,
    )  # fmt: skip
