"""The attention libraries of others that an adapter may call: how each is found, its version, and how to get it."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from cacheir.plugins import CheckResult
from cacheir_cuda.options import DEVICE_VARIABLE


@dataclass(frozen=True)
class Library:
    """``module`` is what is imported, ``distributions`` are names that it is installed under, ``remedy`` a command."""

    name: str
    module: str
    distributions: tuple[str, ...]
    remedy: str
    compiles: bool = False  # compiles its kernels with nvcc when they are first used

    @property
    def version(self) -> str:
        """The installed distribution's, "" where there is none."""
        for distribution in self.distributions:
            try:
                return version(distribution)
            except PackageNotFoundError:
                continue
        return ""

    def why_absent(self) -> str | None:
        """Why it cannot be called, None where it can, as far as can be told without importing it."""
        if not _is_there(self.module):
            return f"{self.name} is not installed ({self.remedy})"
        if self.compiles and shutil.which("nvcc") is None and not _is_there("flashinfer_jit_cache"):
            return f"{self.name} compiles its kernels with nvcc, which is not on the path (or install its jit cache)"
        return None

    def why_not_here(self) -> str | None:
        """``why_absent``, and that the device is the processor."""
        if os.environ.get(DEVICE_VARIABLE) == "cpu":
            return f"{self.name} runs on a GPU alone"
        return self.why_absent()

    def check(self) -> CheckResult:
        """A line for ``cacheir plugins doctor``. None of the libraries is needed, so a missing one is no fault."""
        reason = self.why_absent()
        found = f"{self.name} {self.version or 'of an unknown version'}"
        if reason is None:
            return CheckResult(ok=True, detail=found)
        return CheckResult(ok=True, idle=True, detail=f"{found}, but {reason}" if self.version else reason)


FLASH_ATTENTION = Library("FlashAttention", "flash_attn", ("flash-attn",), "pip install flash-attn")
VLLM_FLASH_ATTENTION = Library("vLLM's FlashAttention", "vllm.vllm_flash_attn", ("vllm",), "pip install vllm")
FLASHINFER = Library("FlashInfer", "flashinfer", ("flashinfer-python",), "pip install flashinfer-python", compiles=True)
CUTLASS = Library("CUTLASS", "cutlass", ("nvidia-cutlass", "nvidia-cutlass-dsl"), "pip install nvidia-cutlass-dsl")
CUTLASS_GENERATOR = Library("CUTLASS's generator", "cutlass_cppgen", ("nvidia-cutlass",), "pip install nvidia-cutlass")


def check_flash_attention() -> CheckResult:
    """FlashAttention's own wheel."""
    return FLASH_ATTENTION.check()


def check_vllm_flash_attention() -> CheckResult:
    """The FlashAttention that vLLM brings."""
    return VLLM_FLASH_ATTENTION.check()


def check_flashinfer() -> CheckResult:
    """FlashInfer, and whether its kernels can be made here."""
    return FLASHINFER.check()


def check_cutlass() -> CheckResult:
    """CUTLASS in Python: the generator of ``nvidia-cutlass``, else the language of ``nvidia-cutlass-dsl``."""
    generator = CUTLASS_GENERATOR.check()
    return generator if CUTLASS_GENERATOR.why_absent() is None else CUTLASS.check()


def _is_there(module: str) -> bool:
    """Whether ``module`` could be imported: looked for, not imported."""
    parent, _, name = module.rpartition(".")
    spec = find_spec(parent or name)
    if spec is None or not parent:
        return spec is not None
    return any(Path(place, name, "__init__.py").exists() for place in spec.submodule_search_locations or ())
