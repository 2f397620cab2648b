"""A backend that holds matrices in 16 bits is not wrong for that; its kernels that are wrong are named all the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed, and the backend's kernels are torch's")

from cacheir.artifact.card import CompileOptions
from cacheir.bisection import bisect_model
from cacheir.bisection.tolerance import EXACT, MATRICES, ROUNDED, default_tolerance
from cacheir.plugins.installation import Installation
from cacheir.testing import plugin_host

FACTOR = 1.1
ALLOWED = {"": 0.2, "bfloat16": 0.2, "float16": 0.03, "float32": 1e-4}


@pytest.fixture(autouse=True)
def on_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHEIR_CUDA_DEVICE", "cpu")


@pytest.fixture(scope="module")
def with_cuda() -> Installation:
    return plugin_host("cacheir_cuda.plugin", "cacheir_importers.plugin")


def larger(run: Callable[..., Any]) -> Callable[..., Any]:
    """``run``, which writes into ``out``, with a result that is a tenth too large."""

    def faulty(*operands: Any, out: Any, **attrs: Any) -> Any:
        made = run(*operands, out=out, **attrs)
        for result in out if isinstance(out, tuple) else (out,):
            result *= FACTOR
        return made

    return faulty


@pytest.mark.parametrize(("held", "allowed"), ALLOWED.items())
def test_matrices_that_are_rounded_are_no_fault(
    held: str, allowed: float, tiny: Path, with_cuda: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHEIR_CUDA_DTYPE", held)
    found = bisect_model(tiny, backend="cuda", installation=with_cuda)
    assert found.finding is None, found.finding
    assert found.tolerance == allowed
    assert found.distance < allowed / 2
    if held != "float32":
        assert found.distance > EXACT  # it is the rounding that is allowed


@pytest.mark.parametrize("held", ["", "float16", "float32"])
@pytest.mark.parametrize(
    ("kernel", "place"),
    [
        ("embedding", "elementwise.embedding"),
        ("linear", "linear.linear"),
        ("fused_swiglu", "fused.fused_swiglu"),
        ("fused_rmsnorm_qkv_rope", "fused.fused_rmsnorm_qkv_rope"),
        ("add_rms_norm", "norm.add_rms_norm"),
    ],
)
def test_a_kernel_a_tenth_off_is_named(
    held: str, kernel: str, place: str, tiny: Path, with_cuda: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHEIR_CUDA_DTYPE", held)
    module, _, name = f"cacheir_cuda.kernels.{place}".rpartition(".")
    right = getattr(__import__(module, fromlist=[name]), name)
    with mock.patch(f"{module}.{name}", larger(right)):
        found = bisect_model(tiny, backend="cuda", installation=with_cuda)
    assert found.finding is not None
    assert (found.finding.kind, found.finding.name) == ("kernel", f"cuda.torch.{kernel}")
    assert found.finding.before < found.tolerance < found.finding.distance


def test_a_tolerance_that_was_given_stands(tiny: Path, with_cuda: Installation) -> None:
    found = bisect_model(tiny, backend="cuda", tolerance=EXACT, installation=with_cuda)
    assert found.tolerance == EXACT
    assert found.finding is not None


def test_meanings_alone_take_no_matrix_of_the_backends(tiny: Path, with_cuda: Installation) -> None:
    """Without a kernel that reads matrices nothing is rounded, and nothing allowed for it."""
    ops = ("embedding", "fused_rmsnorm_qkv_rope", "fused_qkv", "linear", "fused_swiglu", "head_argmax")
    options = CompileOptions(kernels=dict.fromkeys(ops, "reference"))
    found = bisect_model(tiny, backend="cuda", options=options, installation=with_cuda)
    assert found.tolerance == EXACT
    assert found.finding is None, found.finding


def test_the_largest_of_what_is_rounded_is_allowed() -> None:
    assert default_tolerance(numerics=[]) == default_tolerance(numerics=["f32"], matrix_dtype="f32") == EXACT
    assert default_tolerance(numerics=["f32"], matrix_dtype="bf16") == MATRICES["bf16"]
    assert default_tolerance(numerics=["f32", "int8-activations"], matrix_dtype="f16") == ROUNDED
    assert default_tolerance(numerics=["f32"], matrix_dtype="fp8") == ROUNDED  # of a type that nobody measured
