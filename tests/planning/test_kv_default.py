"""How keys and values are kept where nobody says: the backend's way where a program rounds, else as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cacheir.bisection import bisect_model
from cacheir.compile import compile_model
from cacheir_importers.tiny import write_tiny
from cacheir_native.probe import why_unavailable


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model whose weights are f32, beside a native backend that keeps bf16 whatever this machine's is."""
    monkeypatch.setenv("CACHEIR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("cacheir_native.probe.kv_dtype", lambda: "bf16")
    write_tiny(tmp_path / "tiny", family="llama")
    return tmp_path / "tiny"


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"target": "native"}, "f32"),
        ({"target": "native", "quant": "int8"}, "bf16"),
        ({"target": "native", "quant": "int8", "precise": True}, "f32"),
        ({"target": "cpu", "quant": "int8"}, "f32"),
    ],
)
def test_only_a_program_that_rounds_keeps_rounded_keys(tiny: Path, options: dict[str, Any], kept: str) -> None:
    program = compile_model(tiny, **options).program
    assert {group.dtype for group in program.groups} == {kept}


@pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable()))
def test_a_model_in_f32_is_as_exact_on_native_as_its_kernels(tiny: Path) -> None:
    """The runner computes such a model in f32, so rounded keys would be all that takes its logits off."""
    found = bisect_model(tiny, backend="native")
    assert found.finding is None, found.finding
    assert found.distance < found.tolerance == 1e-4
