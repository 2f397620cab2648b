"""cuBLASLt through its C interface: what its heuristic proposes for a product of many rows, and launches of it.

torch launches the first proposal, with an epilogue of its own. Here another one can be named, by its rank.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from cacheir.errors import BackendUnavailable

WORKSPACE_BYTES = 32 << 20  # what NVIDIA advises for Hopper, and torch takes
MOST_PROPOSALS = 16
_KINDS = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 14}  # cudaDataType
_COMPUTE_FLOAT32 = 68  # cublasComputeType_t
_TRANSPOSE_FIRST = 3  # cublasLtMatmulDescAttributes_t
_MOST_WORKSPACE = 1  # cublasLtMatmulPreferenceAttributes_t


class _Algorithm(ctypes.Structure):
    _fields_ = (("data", ctypes.c_uint64 * 8),)


class _Proposal(ctypes.Structure):
    _fields_ = (
        ("algorithm", _Algorithm),
        ("workspace", ctypes.c_size_t),
        ("status", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


@dataclass(frozen=True, order=True)
class LargeProduct:
    """[``tokens``, ``width``] by a matrix [``count``, ``width``], both ``dtype`` -> ``out``, stored or added to it."""

    tokens: int
    count: int
    width: int
    dtype: str
    out: str
    adds: bool


class CublasLt:
    """The library that torch has loaded, with a handle on ``device``. Raises BackendUnavailable."""

    def __init__(self, library: Any, device: torch.device) -> None:
        self.library, self.device = library, device
        self._handle = ctypes.c_void_p()
        library.cublasLtGetVersion.restype = ctypes.c_size_t
        self.call("cublasLtCreate", ctypes.byref(self._handle))

    @property
    def version(self) -> int:
        """As the library spells it: 130100 is 13.1."""
        return int(self.library.cublasLtGetVersion())

    def proposals(self, product: LargeProduct) -> LtMatmul:
        """What the heuristic proposes for ``product``, ready to be launched."""
        return LtMatmul(self, self._handle, product)

    def call(self, name: str, *given: Any) -> None:
        """Call a function of the library; BackendUnavailable where its status is not 0."""
        status = getattr(self.library, name)(*given)
        if status:
            raise BackendUnavailable(f"cuBLASLt's {name} failed with status {status}")


class LtMatmul:
    """``len`` proposals for a product, the one that the heuristic likes best first.

    What the library holds for them is let go with ``close``, or when nothing refers to them any more.
    """

    def __init__(self, blas: CublasLt, handle: Any, product: LargeProduct) -> None:
        self.product, self._blas, self._handle = product, blas, handle
        self._held: list[tuple[str, ctypes.c_void_p]] = []  # by the function that destroys it
        self._let_go = weakref.finalize(self, _destroy, blas, self._held)
        self._let_go.atexit = False  # the process takes it along, and CUDA may be gone before
        self._alpha, self._beta = ctypes.c_float(1.0), ctypes.c_float(1.0 if product.adds else 0.0)
        kind, out = (_KINDS[getattr(torch, name)] for name in (product.dtype, product.out))
        # The library's matrices have their columns one after the other: out^T [N, T] = (w^T)^T [N, K] times x^T [K, T].
        self._operation = self._kept("cublasLtMatmulDesc", ctypes.c_int(_COMPUTE_FLOAT32), ctypes.c_int(0))
        transposed = ctypes.c_int(1)
        blas.call(
            "cublasLtMatmulDescSetAttribute", self._operation, ctypes.c_int(_TRANSPOSE_FIRST), ctypes.byref(transposed),
            ctypes.c_size_t(4),
        )  # fmt: skip
        self._weight = self._layout(kind, product.width, product.count)
        self._x = self._layout(kind, product.width, product.tokens)
        self._out = self._layout(out, product.count, product.tokens)
        self._proposals = self._asked()

    def __len__(self) -> int:
        return len(self._proposals)

    def launch(self, rank: int, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, space: torch.Tensor) -> None:
        """Launch proposal ``rank`` on torch's stream; ``space`` are WORKSPACE_BYTES bytes that nothing else uses then.

        x [T, K] and weight [N, K] -> out [T, N], all of them contiguous. Raises BackendUnavailable where the library
        does not take it.
        """
        proposal = self._proposals[rank]
        stream = torch.cuda.current_stream(self._blas.device).cuda_stream
        self._blas.call(
            "cublasLtMatmul", self._handle, self._operation, ctypes.byref(self._alpha), _at(weight), self._weight,
            _at(x), self._x, ctypes.byref(self._beta), _at(out), self._out, _at(out), self._out,
            ctypes.byref(proposal.algorithm), _at(space), ctypes.c_size_t(proposal.workspace), ctypes.c_void_p(stream),
        )  # fmt: skip

    def _asked(self) -> list[_Proposal]:
        preference = self._made("cublasLtMatmulPreferenceCreate")
        most, found = ctypes.c_size_t(WORKSPACE_BYTES), ctypes.c_int(0)
        proposals = (_Proposal * MOST_PROPOSALS)()
        try:
            self._blas.call(
                "cublasLtMatmulPreferenceSetAttribute", preference, ctypes.c_int(_MOST_WORKSPACE), ctypes.byref(most),
                ctypes.c_size_t(8),
            )  # fmt: skip
            self._blas.call(
                "cublasLtMatmulAlgoGetHeuristic", self._handle, self._operation, self._weight, self._x, self._out,
                self._out, preference, ctypes.c_int(MOST_PROPOSALS), proposals, ctypes.byref(found),
            )  # fmt: skip
        finally:
            self._blas.call("cublasLtMatmulPreferenceDestroy", preference)
        return [each for each in proposals[: found.value] if each.status == 0 and each.workspace <= WORKSPACE_BYTES]

    def _layout(self, kind: int, rows: int, columns: int) -> ctypes.c_void_p:
        return self._kept(
            "cublasLtMatrixLayout", ctypes.c_int(kind), ctypes.c_uint64(rows), ctypes.c_uint64(columns),
            ctypes.c_int64(rows),
        )  # fmt: skip

    def _kept(self, name: str, *given: Any) -> ctypes.c_void_p:
        made = self._made(f"{name}Create", *given)
        self._held.append((f"{name}Destroy", made))
        return made

    def _made(self, name: str, *given: Any) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self._blas.call(name, ctypes.byref(made), *given)
        return made

    def close(self) -> None:
        """Let go of what the library holds for this product; nothing of it can be launched any more."""
        self._proposals = []
        self._let_go()


@lru_cache(maxsize=8)
def cublas_lt(device: torch.device, load: Callable[[str], Any] = ctypes.CDLL) -> CublasLt:
    """The library of torch's CUDA version on ``device``. Raises BackendUnavailable."""
    name = f"libcublasLt.so.{str(torch.version.cuda).partition('.')[0]}"
    try:
        return CublasLt(load(name), device)
    except (OSError, AttributeError) as error:
        raise BackendUnavailable(f"{name} cannot be used ({error})") from error


def _destroy(blas: CublasLt, held: list[tuple[str, ctypes.c_void_p]]) -> None:
    """Destroy what ``held`` names, the last first. It knows no LtMatmul, so that one can be collected."""
    while held:
        name, made = held.pop()
        blas.call(name, made)


def _at(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())
