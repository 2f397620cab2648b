"""Triton's kernels are defined here for its interpreter, so that tests can run them on the processor.

Triton reads TRITON_INTERPRET where a kernel is defined, and this package where one is chosen. A test that means
Triton's kernels asks for ``interpreted``; left in the environment, the variable would choose them for every other test
of the process too, and for what it starts.
"""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
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
def interpreted(no_interpreter: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Triton's kernels are chosen on the processor, and run in its interpreter.

    Which computes by NumPy: that tells of a NaN or an infinity where a GPU tells of none, of some by chance alone (a
    maximum over a NaN, by where its array lies). What is computed is what tests look at.
    """
    pytest.importorskip("triton", reason="Triton is not installed")
    if COMPILED:
        pytest.skip("compiled for a GPU in this run")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with np.errstate(all="ignore"):
        yield


@pytest.fixture(scope="session")
def qwen_chain() -> Any:
    """The decode chain of four layers of Qwen3-0.6B's shape; the names of its weights stand for none."""
    pytest.importorskip("torch", reason="PyTorch is not installed, and the backend runs on it")
    from cacheir_cuda.chain.recognise import Chain, ChainLayer

    turn = {"dims": 128, "theta": 1e6, "factors": (1.0,) * 64, "magnitude": 1.0}
    layers = [
        ChainLayer(
            number=number, norm="n", qkv=("q", "k", "v"), biases=(), q_norm="qn", k_norm="kn", output="o",
            feed_forward_norm="f", gate_up=("g", "u"), down="d",
        )
        for number in range(4)
    ]  # fmt: skip
    return Chain(
        hidden=1024, feed_forward=3072, heads=16, kv_heads=8, vocabulary=1024, eps=1e-6, scale=0.1,
        turn=tuple(turn.items()), embedding="e", final_norm="n", head="e", layers=tuple(layers),
    )  # fmt: skip
