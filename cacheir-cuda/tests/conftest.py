"""Triton's kernels are defined here for its interpreter, so that tests can run them on the processor.

Triton reads TRITON_INTERPRET where a kernel is defined, and this package where one is chosen. A test that means
Triton's kernels asks for ``interpreted``; left in the environment, the variable would choose them for every other test
of the process too, and for what it starts.
"""

from __future__ import annotations

import os
import pkgutil
from importlib import import_module
from importlib.util import find_spec

import pytest

COMPILED = os.environ.get("CACHEIR_TEST_DEVICE") == "cuda" or os.environ.get("TRITON_INTERPRET") == "0"


def _define_kernels() -> None:
    from cacheir_cuda import kernels

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        for module in pkgutil.iter_modules(kernels.__path__):
            if module.name.startswith("triton_"):
                import_module(f"{kernels.__name__}.{module.name}")


if not COMPILED and all(map(find_spec, ("torch", "triton"))):
    _define_kernels()


@pytest.fixture(autouse=True)
def no_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs here without ``interpreted`` is chosen as if Triton ran on a GPU alone."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


@pytest.fixture
def interpreted(no_interpreter: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's kernels are chosen on the processor, and run in its interpreter."""
    pytest.importorskip("triton", reason="Triton is not installed")
    if COMPILED:
        pytest.skip("compiled for a GPU in this run")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
