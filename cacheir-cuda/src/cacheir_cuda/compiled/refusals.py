"""What the CUDA C++ kernels of single ops cannot do, and where they cannot run, in words for the schedule's reader."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from cacheir.errors import BackendUnavailable, UsageError
from cacheir.ir import Op
from cacheir.ir.types import KVType, QuantType, TensorType
from cacheir.plugins import KernelSpec
from cacheir_cuda.chain.cubins import FOLDER, load_cubin, other_folders
from cacheir_cuda.driver import DriverProblem, ask_capability
from cacheir_cuda.kernels import refusals
from cacheir_cuda.options import DEVICE_VARIABLE

if TYPE_CHECKING:
    from cacheir_cuda.pool import Pool

PREFIX = "cuda.cpp."
SOURCE = "kernels"  # cpp/kernels.cu
_COPIED = 8  # elements of 16 bits that are copied at once
_LARGEST_HEAD = 256
_PAGES = ("f32", "f16", "bf16")
_ATTRIBUTES = frozenset({"layer", "scale", "window", "softcap", "sinks"})


def rows(op: Op) -> str | None:
    """Float32 activations, and a GPU with a cubin."""
    return why_not_here() or refusals.all_f32(op)


def product(op: Op) -> str | None:
    """As ``rows``, of a matrix whose rows are a whole number of 16 bytes."""
    width = _last(op, 0)
    if width % _COPIED:
        return f"rows of {width} elements are no whole number of the {_COPIED} that the kernel copies at once"
    return rows(op)


def turned_product(op: Op) -> str | None:
    """As ``product``; heads and their turned part have pairs, so their sizes are even."""
    dim, turned = _last_result(op), 2 * _last(op, 5)
    if dim % 2 or turned > dim:
        return f"heads of {dim} elements, {turned} of them turned, are no pairs"
    return product(op)


def paged(op: Op) -> str | None:
    """As ``rows``: heads of a multiple of 8 up to 256, pages without codes."""
    dim = _last(op, 0)
    if dim % _COPIED or dim > _LARGEST_HEAD:
        return f"heads are of {dim}, and the kernel takes multiples of {_COPIED} up to {_LARGEST_HEAD}"
    pages = op.operands[1].type
    if isinstance(pages, KVType) and pages.dtype not in _PAGES:
        return f"pages hold {pages.dtype}, and the kernel reads {', '.join(_PAGES)}"
    unknown = [name for name, value in op.attrs if name not in _ATTRIBUTES and value]
    return f"the kernel knows no {unknown[0]}" if unknown else rows(op)


def why_not_here() -> str | None:
    """Why the kernels cannot run here, None where they can: the processor, no GPU, no cubin for it."""
    device = os.environ.get(DEVICE_VARIABLE, "cuda")
    if device == "cpu":
        return "the CUDA C++ kernels run on a GPU alone"
    number = device.partition(":")[2]
    found = {folder: tuple(sorted(folder.glob(f"{SOURCE}.*.cubin"))) for folder in other_folders()}
    return _why_no_cubin(int(number) if number.isdigit() else 0, tuple(found.items()))


@lru_cache(maxsize=8)
def _why_no_cubin(number: int, others: tuple[tuple[Path, tuple[Path, ...]], ...]) -> str | None:
    """``others`` are folders with their cubins: one that came with an artifact meanwhile is another question."""
    try:
        load_cubin(ask_capability(number), FOLDER, [folder for folder, _ in others], SOURCE)
    except (DriverProblem, BackendUnavailable) as reason:
        return str(reason)
    return None


def check_pages(kernels: Mapping[str, KernelSpec], pools: Sequence[Pool]) -> None:
    """Raise UsageError where a kernel of ``kernels`` is one of these and cannot read such pages."""
    for name in sorted(name for name in kernels if name.startswith(f"{PREFIX}paged_attention")):
        for pool in pools:
            if pool.kind.dtype not in _PAGES:
                raise UsageError(
                    f"{name} reads pages of {', '.join(_PAGES)}, and these hold {pool.kind.dtype}",
                    hint="give --kv-dtype bf16",
                )


def _last(op: Op, operand: int) -> int:
    return _last_size(op.operands[operand].type)


def _last_result(op: Op) -> int:
    return _last_size(op.results[0].type)


def _last_size(type_: object) -> int:
    assert isinstance(type_, (TensorType, QuantType))
    return int(type_.shape[-1].evaluate({}))
