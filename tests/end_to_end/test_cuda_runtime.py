"""``CudaRuntime`` and ``--cuda-dtype``: the CUDA backend by name, its matrices in the type that was asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed, and the backend runs on it")

from cacheir import Runtime  # noqa: E402
from cacheir.errors import UsageError  # noqa: E402
from cacheir_cuda.runtime import CudaRuntime  # noqa: E402


@pytest.fixture(autouse=True)
def on_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHEIR_CUDA_DEVICE", "cpu")


def matrices(runtime: Runtime) -> set[Any]:
    """The types of the resident tensors with two axes."""
    tensors = runtime._model.executor._residents._tensors.values()
    return {tensor.dtype for tensor in tensors if tensor.ndim == 2}


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32"])
def test_matrices_are_held_in_the_type_asked_for(tiny: Path, name: str) -> None:
    with CudaRuntime(tiny, cuda_dtype=name) as runtime, Runtime(tiny, "cpu") as exact:
        assert runtime.backend_choice.name == "cuda"
        assert matrices(runtime) == {getattr(torch, name)}
        ids = exact.encode("A compiler is")
        found, expected = logits(runtime, ids), logits(exact, ids)
        bound = {"bfloat16": 6e-2, "float16": 1e-2, "float32": 1e-5}[name]
        assert abs(found - expected).max() < bound * abs(expected).max()


def logits(runtime: Runtime, ids: list[int]) -> Any:
    """f32 [V] of the last of ``ids``."""
    from cacheir.runtime.executor import Row, Step

    executor = runtime._model.executor
    row = Row(slot=0, tokens=tuple(ids), position=0, pages=(tuple(range(len(ids) // 16 + 1)),), want="logits")
    (made,) = executor.wait(executor.submit(Step(mode="prefill", rows=(row,)))).rows
    return made.logits[-1]


def test_the_chain_s_reason_is_counted(tiny: Path) -> None:
    with CudaRuntime(tiny, cuda_dtype="float16") as runtime:
        assert any(name.startswith("decode_chain_refused: ") for name in runtime._model.executor.counters())


def test_the_command_s_answer_is_the_runtime_s(tiny: Path, cacheir: Callable[..., Any]) -> None:
    words = ("--backend", "cuda", "--cuda-dtype", "float16", "--prompt", "A compiler is", "--max-new-tokens", "8")
    made = cacheir("run", str(tiny), *words, "--json")
    assert made.returncode == 0, made.stderr
    with CudaRuntime(tiny, cuda_dtype="float16") as runtime:
        assert json.loads(made.stdout)["ids"] == list(runtime.generate_ids(runtime.encode("A compiler is"), 8))


def test_an_artifact_keeps_the_type_it_was_compiled_for(
    tiny: Path, tmp_path: Path, cacheir: Callable[..., Any]
) -> None:
    folder = tmp_path / "artifact"
    made = cacheir("compile", str(tiny), "--target", "cuda", "--cuda-dtype", "float16", "--output", str(folder))
    assert made.returncode == 0, made.stderr
    with Runtime(folder) as runtime:
        assert matrices(runtime) == {torch.float16}
    with CudaRuntime(folder, cuda_dtype="bfloat16") as runtime:
        assert matrices(runtime) == {torch.bfloat16}


def test_what_cannot_be_is_refused(tiny: Path, cacheir: Callable[..., Any]) -> None:
    with pytest.raises(UsageError, match="bfloat16, float16, float32, not 'int8'"):
        CudaRuntime(tiny, cuda_dtype="int8")
    with pytest.raises(UsageError, match="backend 'cuda' has no option 'colour'"):
        Runtime(tiny, "cuda", backend_options={"colour": "red"})
    for command in (["run"], ["compile", "--output", "never"]):
        made = cacheir(*command, str(tiny), "--cuda-dtype", "float16", *(["--backend", "cpu"] * (command == ["run"])))
        assert made.returncode == 2 and "has no option 'cuda_dtype'" in made.stderr
        assert "leave it out, or choose the backend that has it: cuda" in made.stderr
        assert "compil" not in made.stderr and "passes" not in made.stderr  # it is refused before a compile
    assert not Path("never").exists()
