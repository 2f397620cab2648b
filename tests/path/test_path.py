"""``pytest -m path``: the eight steps of the shortest path to a served model, in order; docs/path.md lists them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed, and most steps are the CUDA backend's")

from cacheir import CompileOptions, Runtime, compile_model  # noqa: E402
from cacheir.runtime.executor import Step  # noqa: E402
from cacheir.schedule.capture_plan import captures_of  # noqa: E402
from cacheir.schedule.flatten import flatten  # noqa: E402
from cacheir.testing.hosts import plugin_host  # noqa: E402
from cacheir.testing.opened_backend import OpenedBackend  # noqa: E402
from cacheir.testing.tiny_programs import TinyProgram  # noqa: E402
from cacheir_importers.tiny import write_tiny  # noqa: E402

pytestmark = pytest.mark.path
IDS = [7, 3, 11, 2, 9, 5, 13, 1, 8, 4, 6]


@pytest.fixture(autouse=True)
def on_the_processor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CACHEIR_CUDA_DEVICE", "cpu")
    monkeypatch.setenv("CACHEIR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


def program() -> TinyProgram:
    return TinyProgram("grouped", plugin_host("cacheir_cuda.plugin"), CompileOptions(target="cuda"))


@pytest.fixture
def opened() -> Iterator[OpenedBackend]:
    with OpenedBackend(program(), page_tokens=4, extra={"cuda_dtype": "float32"}) as backend:
        yield backend


@cache
def in_triton() -> dict[str, Any]:
    """What ``in_triton.py`` prints."""
    pytest.importorskip("triton", reason="Triton is not installed")
    words = [sys.executable, str(Path(__file__).with_name("in_triton.py"))]
    made = subprocess.run(
        words, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    found: dict[str, Any] = json.loads(made.stdout)
    return found


def near(found: Any, expected: Any, bound: float) -> None:
    assert np.abs(found - expected).max() < bound * np.abs(expected).max()


@pytest.mark.parametrize(("name", "kv", "bound"), [("float16", "f16", 1e-2), ("bfloat16", "bf16", 6e-2)])
def test_1_narrow_types(name: str, kv: str, bound: float) -> None:
    """Matrices, keys and values of 16 bits: half the bytes of float32, and logits that say so."""
    with OpenedBackend(program(), page_tokens=4, kv_dtype=kv, extra={"cuda_dtype": name}) as narrow:
        held = narrow.executor._residents._tensors.values()
        assert {tensor.dtype for tensor in held if tensor.ndim == 2} == {getattr(torch, name)}
        near(narrow.prefill(0, IDS), narrow.tiny.logits(IDS), bound)
        with OpenedBackend(narrow.tiny, page_tokens=4, extra={"cuda_dtype": "float32"}) as wide:
            assert 2 * narrow.executor.memory().kv == wide.executor.memory().kv
            assert narrow.executor.memory().weights < 0.6 * wide.executor.memory().weights


def test_2_dynamic_shapes(opened: OpenedBackend) -> None:
    """One program has a size T; launches are bound to prompts of any length when they come."""
    main = opened.tiny.program.modules["prefill"].main
    assert ("T", 1, opened.tiny.program.max_tokens) in main.dims
    for slot, count in enumerate((1, 2, 5, 11)):
        near(opened.prefill(slot, IDS[:count]), opened.tiny.logits(IDS[:count]), 1e-5)


def test_3_control_flow_and_state(opened: OpenedBackend) -> None:
    """Main calls the layer graph once for each layer; pages outlive a step, and a run of steps needs no host."""
    decode = opened.tiny.program.modules["decode"]
    calls = [op for op in decode.main.ops if op.name == "call"]
    assert [op.attr("layer") for op in calls] == [0, 1] and len({op.attr("graph", "") for op in calls}) == 1
    opened.prefill(0, IDS[:5])
    for position in range(5, len(IDS)):  # each step reads what the steps before it stored
        near(opened.decode(0, IDS[position], position), opened.tiny.logits(IDS[: position + 1])[-1:], 1e-5)
    assert run_of(opened, 6) == [greedy(opened.tiny, count) for count in range(6)]


def run_of(opened: OpenedBackend, n: int) -> list[int]:
    """The ``n`` tokens after the first three of ``IDS`` in sequence 1, by one ``run_ahead``."""
    tokens: list[int] = []
    opened.prefill(1, IDS[:2])
    row = opened.row(1, IDS[2:3], 2, pages=opened.pages_of(1))
    full = type(row)(**{**vars(row), "pages": (opened.pages_of(1),)})
    made = opened.executor.run_ahead(Step(mode="decode", rows=(full,)), n, lambda rows: tokens.append(rows[0].token))
    assert made == n
    return tokens


def greedy(tiny: TinyProgram, count: int) -> int:
    """The token after the first three of ``IDS`` and ``count`` greedy ones, by the meaning of the program."""
    ids = IDS[:3]
    for _ in range(count):
        ids = [*ids, int(tiny.logits(ids)[-1].argmax())]
    return int(tiny.logits(ids)[-1].argmax())


def test_4_residency_and_plan(opened: OpenedBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are made once, at load; steps lie in the planned arena and own nothing new."""
    executor, plans = opened.executor, opened.tiny.program.plans
    assert executor.memory().arena == max(plan.arena_bytes for plan in plans.values())
    monkeypatch.setattr(type(opened.tiny.weights), "get", lambda *_: pytest.fail("a weight was read in a step"))
    at = {key: tensor.data_ptr() for key, tensor in executor._residents._tensors.items()}
    before, arena = executor.memory(), executor._arena.data_ptr()
    opened.prefill(0, IDS[:4])
    opened.decode(0, IDS[4], 4)
    assert {key: tensor.data_ptr() for key, tensor in executor._residents._tensors.items()} == at
    assert (executor.memory(), executor._arena.data_ptr()) == (before, arena)


def test_5_split_k_by_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row takes the product that splits K over programs, more rows the library's: chosen by shape in the plan."""
    pytest.importorskip("triton", reason="Triton is not installed")
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # the plan alone is looked at: it refuses Triton where it cannot run
    made = program().program
    (launch,) = [
        launch for launch in flatten(made, "decode", "main") if launch.op.name == "fused_swiglu" and launch.layer == 0
    ]
    assert launch.choice(1).kernel == "cuda.triton.fused_swiglu"
    assert launch.choice(4).kernel == "cuda.torch.fused_swiglu"
    assert in_triton()["parts"] == 4
    assert in_triton()["split_k"] < 3e-3


def test_6_int4_with_fused_dequantisation(tmp_path: Path) -> None:
    """Weights stay packed in memory and expand in the kernel, on the CPU's native backend until the GPU has it."""
    pytest.importorskip("cacheir_native", reason="cacheir-native is not installed")
    folder = tmp_path / "model"
    write_tiny(folder)
    quantised = CompileOptions(quant="int4")
    with (
        Runtime(folder, "native", compile_options=quantised) as native,
        Runtime(folder, "native") as whole,
        Runtime(folder, "cpu", compile_options=CompileOptions(quant="int4", precise=True)) as meaning,
    ):
        entries = flatten(native.artifact.program, "decode", "main")
        packed = [launch for launch in entries if any("quantize" in place.name for place in launch.reads)]
        assert packed and all(launch.choice(1).kernel.startswith("cpu.native.") for launch in packed)
        assert not any(launch.op.name == "dequantize" for launch in entries)
        assert native.memory().weights < 0.5 * whole.memory().weights
        ids = native.encode("A compiler is")
        near(last_logits(native, ids), last_logits(meaning, ids), 3e-2)


def last_logits(runtime: Runtime, ids: list[int]) -> Any:
    """f32 [V] after ``ids``."""
    from cacheir.runtime.executor import Row

    executor = runtime.model.executor
    row = Row(slot=0, tokens=tuple(ids), position=0, pages=(tuple(range(len(ids) // 16 + 1)),), want="logits")
    return executor.wait(executor.submit(Step(mode="prefill", rows=(row,)))).rows[0].logits[-1]


def test_7_fused_attention(opened: OpenedBackend) -> None:
    """Attention is one op over pages: nothing of queries by keys is planned, and its kernel runs the softmax along."""
    made = opened.tiny.program
    names = [launch.op.name for launch in flatten(made, "prefill", "main") if launch.layer == 0]
    assert names.count("paged_attention_prefill") == 1 and "softmax" not in names
    scores = made.max_tokens * made.max_seq * made.spec.layers[0].heads * 4
    layer = made.plans["prefill"].frame("decoder_layer")
    assert max(place.nbytes for place in layer.places.values()) < scores
    assert in_triton()["attention"] < 1e-5


def test_8_graph_capture_of_the_decode_step(opened: OpenedBackend, tmp_path: Path) -> None:
    """Decode is recordable in one piece for each row bucket; a step that is no replay says why. (Replays: on a GPU.)"""
    write_tiny(tmp_path / "model")
    artifact = compile_model(tmp_path / "model", "cuda", max_rows=6)
    (decode,) = [plan for plan in captures_of(artifact.program).modes if plan.mode == "decode"]
    assert [capture.rows for capture in decode.captures] == [1, 2, 4, 6]
    assert all(capture.pieces == 1 and not capture.breaks for capture in decode.captures)
    assert decode.capture_for(3).rows == 4
    tokens = run_of(opened, 4)
    assert opened.executor.counters()["graph_misses"] == 0
    with OpenedBackend(opened.tiny, page_tokens=4, extra={"cuda_dtype": "float32", "use_cuda_graph": False}) as plain:
        assert run_of(plain, 4) == tokens
        assert plain.executor.counters()["graph_miss: graphs are switched off"] == 4
