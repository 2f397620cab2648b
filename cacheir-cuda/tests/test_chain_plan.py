"""The decode chain is found behind whatever fusions ran, and refused in words; its files are checked before use."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed, and the backend runs on it")

from cacheir.artifact.card import CompileOptions  # noqa: E402
from cacheir.errors import BackendUnavailable  # noqa: E402
from cacheir.ir.types import KVType, TensorType  # noqa: E402
from cacheir.models.decoder_spec import DecoderSpec, LayerSpec, RopeSpec  # noqa: E402
from cacheir.models.weight_shapes import weight_shapes  # noqa: E402
from cacheir.runtime.executor import ExecutorOptions  # noqa: E402
from cacheir.runtime.slots import Slots  # noqa: E402
from cacheir.schedule.program import Program  # noqa: E402
from cacheir.testing import tiny_programs  # noqa: E402
from cacheir.testing.hosts import plugin_host  # noqa: E402
from cacheir.testing.tiny_decoders import TinyDecoder  # noqa: E402
from cacheir_cuda.chain import cubins, tiles  # noqa: E402
from cacheir_cuda.chain.plan_step import NOTE  # noqa: E402
from cacheir_cuda.chain.run import split_steps, why_no_pages  # noqa: E402
from cacheir_cuda.chain.seat import ChainSeat  # noqa: E402
from cacheir_cuda.forecast import forecast  # noqa: E402
from cacheir_cuda.options import read_options  # noqa: E402
from cacheir_cuda.pool import Pool  # noqa: E402

ROPE = RopeSpec(theta=1e6, dims=128)
QWEN3_06B = LayerSpec(heads=16, kv_heads=8, head_dim=128, feed_forward=3072, rope=ROPE, qk_norm=True)
QWEN3_17B = LayerSpec(heads=16, kv_heads=8, head_dim=128, feed_forward=6144, rope=ROPE, qk_norm=True)
R1_15B = LayerSpec(heads=12, kv_heads=2, head_dim=128, feed_forward=8960, rope=ROPE, qkv_bias=True)
QWEN25_7B = LayerSpec(heads=28, kv_heads=4, head_dim=128, feed_forward=18944, rope=ROPE, qkv_bias=True)
LLAMA_8B = LayerSpec(heads=32, kv_heads=8, head_dim=128, feed_forward=14336, rope=ROPE)
SHAPES = [(QWEN3_06B, 1024), (QWEN3_17B, 2048), (R1_15B, 1536), (QWEN25_7B, 3584), (LLAMA_8B, 4096)]
# The passes that fuse what the chain computes; without them the same chain must be found.
FUSIONS = ("fuse-qkv", "fuse-norm-qkv-rope", "fuse-swiglu", "fuse-add-norm", "fuse-horizontal")


def compiled(monkeypatch: pytest.MonkeyPatch, layer: LayerSpec, hidden: int, **changed: Any) -> Program:
    """Four layers of ``layer`` for the backend; no weight is made."""
    monkeypatch.setenv("CACHEIR_CUDA_DEVICE", "cpu")
    layers, options = changed.pop("layers", (layer,) * 4), changed.pop("options", {})
    spec = DecoderSpec(
        family="llama", label="shape", vocab_size=1024, hidden=hidden, max_positions=32, norm_eps=1e-6,
        layers=layers, tied_head=True, **changed,
    )  # fmt: skip
    types = {
        key: TensorType.of("bf16", *shape) for key, shape in weight_shapes(spec).items() if key in spec.weight_keys()
    }
    monkeypatch.setattr(tiny_programs, "tiny_decoders", lambda: {"shape": TinyDecoder(spec=spec, weights=types)})
    options = CompileOptions(target="cuda", max_seq=32, max_rows=4, max_tokens=24, **options)
    return tiny_programs.TinyProgram("shape", plugin_host("cacheir_cuda.plugin"), options).program


def note(program: Program) -> dict[str, Any]:
    found = program.plan_notes[NOTE]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(("layer", "hidden"), SHAPES)
@pytest.mark.parametrize("skipped", [(), FUSIONS], ids=["fused", "unfused"])
def test_the_chain_of_each_shape(
    layer: LayerSpec, hidden: int, skipped: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = note(compiled(monkeypatch, layer, hidden, options={"skip_passes": skipped}))
    assert made["layers"] == 4
    assert set(made["kernels"]) <= tiles.all_kernels()
    assert len(made["kernels"]) == 7


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"layers": (QWEN3_06B,) * 2}, "2 layers"),
        ({"layers": (QWEN3_06B,) * 3 + (replace(QWEN3_06B, feed_forward=1024),)}, "unlike feed forward"),
        ({"layers": (replace(QWEN3_06B, attention_softcap=30.0),) * 4}, "scores are capped"),
        ({"layers": (replace(QWEN3_06B, window=8),) * 4}, "window"),
        ({"layers": (replace(QWEN3_06B, feed_forward=2048),) * 4}, "no swiglu kernel .* 4096 x 1024"),
        ({"layers": (replace(QWEN3_06B, kv_heads=4),) * 4}, "no qkv kernel is compiled"),
        ({"layers": (replace(QWEN3_06B, qk_norm=False),) * 4}, "no attention kernel .* 16 and 8 heads, not"),
        ({"layers": (replace(QWEN3_06B, output_bias=True),) * 4}, "output projection has a bias"),
        ({"layers": (replace(QWEN3_06B, rope=replace(ROPE, layout="interleaved")),) * 4}, "interleaved"),
        ({"layers": (replace(QWEN3_06B, head_dim=64, rope=RopeSpec(theta=1e4, dims=64)),) * 4}, "64 dimensions"),
        ({"logit_softcap": 30.0}, "where the chain has head_argmax"),
        ({"options": {"kernels": {"linear": "cuda.torch.linear"}}}, "--kernel chose how linear runs"),
    ],
)  # fmt: skip
def test_another_decoder_is_refused_in_words(
    changed: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = note(compiled(monkeypatch, QWEN3_06B, 1024, **changed))
    assert "kernels" not in refused
    assert re.search(reason, refused["refused"]), refused["refused"]


def test_the_executors_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    program = compiled(monkeypatch, QWEN3_06B, 1024)
    gpu, nothing = torch.device("cuda"), {}

    def reason(where: Any = gpu, plan: Program = program, **extra: Any) -> str:
        seat = ChainSeat()
        seat.load(plan, None, where, read_options(extra, nothing))  # type: ignore[arg-type]
        assert not seat.takes((), Slots())
        steps = {"decode_chain_steps": 0, "rows_chain_steps": 0, "rows_chain_prompts": 0}
        refused = {f"{name}_refused: {seat.refusal}": 1 for name in ("decode_chain", "rows_chain")}
        assert seat.counters() == {**steps, **refused}
        return seat.refusal

    assert reason(torch.device("cpu")) == "the device is the processor"
    assert reason(use_cuda_graph=False) == "graphs are switched off"
    assert reason(decode_chain=False) == "it is switched off"
    assert "float16" in reason(cuda_dtype="float16")
    assert "without a plan" in reason(plan=replace(program, plan_notes={}))
    assert reason(plan=replace(program, plan_notes={NOTE: {"refused": "so"}})) == "so"


def test_pages_that_the_kernels_cannot_read() -> None:
    kind = KVType(layers=1, heads=2, head_dim=128, dtype="f32")
    cpu = torch.device("cpu")
    assert "f32" in str(why_no_pages(Pool(kind, (0,), 1, 16, cpu)))
    assert "8 tokens" in str(why_no_pages(Pool(kind, (0,), 1, 8, cpu, "bf16")))
    assert why_no_pages(Pool(kind, (0,), 1, 32, cpu, "bf16")) is None


@pytest.mark.parametrize("n", [1, 2, 7, 16, 31, 32, 100])
def test_steps_are_split_into_graphs(n: int) -> None:
    made = split_steps(n)
    assert sum(made) == n
    assert made == sorted(made, reverse=True)


def write_manifest(folder: Path, **changed: Any) -> bytes:
    image = b"\x7fELF as good as any"
    entry = {
        "file": "decode_chain.sm_90a.cubin", "capability": [9, 0], "sha256": hashlib.sha256(image).hexdigest(),
        "toolchain": "nvcc 13", "kernels": ["advance_row"], **changed,
    }  # fmt: skip
    (folder / "decode_chain.sm_90a.cubin").write_bytes(image)
    (folder / "manifest.json").write_text(json.dumps({"cubins": [entry]}))
    cubins.read_manifest.cache_clear()
    return image


def test_a_cubin_is_read_by_its_manifest(tmp_path: Path) -> None:
    image = write_manifest(tmp_path)
    assert cubins.load_cubin((9, 0), tmp_path) == image
    with pytest.raises(BackendUnavailable, match=r"compute capability 9\.0, and this GPU has 8\.9"):
        cubins.load_cubin((8, 9), tmp_path)
    with pytest.raises(BackendUnavailable, match="kernels of another are not built"):
        cubins.load_cubin((9, 0), tmp_path, source="another")
    (tmp_path / "decode_chain.sm_90a.cubin").write_bytes(image + b"!")
    with pytest.raises(BackendUnavailable, match="not the file that its manifest names"):
        cubins.load_cubin((9, 0), tmp_path)
    (tmp_path / "decode_chain.sm_90a.cubin").unlink()
    with pytest.raises(BackendUnavailable, match="cannot be read"):
        cubins.load_cubin((9, 0), tmp_path)


def test_a_cubin_from_elsewhere_is_taken_by_the_installed_manifest_alone(tmp_path: Path) -> None:
    """Of a cache, or beside an artifact: a forged one is passed over, and so is a manifest that vouches for it."""
    installed, brought = tmp_path / "installed", tmp_path / "artifact"
    installed.mkdir()
    brought.mkdir()
    image = write_manifest(installed)
    (installed / "decode_chain.sm_90a.cubin").unlink()
    forged = b"\x7fELF of somebody else's"
    write_manifest(brought)
    (brought / "decode_chain.sm_90a.cubin").write_bytes(forged)
    (brought / "manifest.json").write_text(
        json.dumps({"cubins": [{
            "file": "decode_chain.sm_90a.cubin", "capability": [9, 0], "sha256": hashlib.sha256(forged).hexdigest(),
            "toolchain": "nvcc 13", "kernels": ["advance_row"],
        }]})
    )  # fmt: skip
    cubins.read_manifest.cache_clear()
    with pytest.raises(BackendUnavailable, match="cannot be read"):
        cubins.load_cubin((9, 0), installed, [brought, tmp_path / "nowhere"])
    (brought / "decode_chain.sm_90a.cubin").write_bytes(image)
    assert cubins.load_cubin((9, 0), installed, [brought]) == image


def test_a_manifest_is_not_believed(tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailable, match="not built") as caught:
        cubins.load_cubin((9, 0), tmp_path / "nowhere")
    assert "Triton" in str(caught.value.hint)
    for changed in ({"file": "../decode_chain.sm_90a.cubin"}, {"capability": "9"}, {"kernels": 3}):
        write_manifest(tmp_path, **changed)
        with pytest.raises(BackendUnavailable, match="no manifest"):
            cubins.load_cubin((9, 0), tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    cubins.read_manifest.cache_clear()
    with pytest.raises(BackendUnavailable, match="no manifest"):
        cubins.load_cubin((9, 0), tmp_path)


def test_the_built_cubin_has_every_kernel() -> None:
    if not (cubins.FOLDER / cubins.MANIFEST).exists():
        pytest.skip("the CUDA C++ kernels are not built here")
    cubins.read_manifest.cache_clear()
    (cubin,) = (cubin for cubin in cubins.read_manifest() if cubin.source == cubins.CHAIN)
    assert tiles.all_kernels() <= cubin.kernels
    assert cubins.load_cubin(cubin.capability)


def test_the_chain_s_second_copy_of_the_matrices_is_foretold(monkeypatch: pytest.MonkeyPatch) -> None:
    """No device is opened for it, so it can be asked on a machine that has none."""
    program = compiled(monkeypatch, QWEN3_06B, 1024)
    monkeypatch.delenv("CACHEIR_CUDA_DEVICE")

    def weights(**extra: Any) -> int:
        options = ExecutorOptions(extra=extra, installation=plugin_host("cacheir_cuda.plugin"))
        return forecast(program, options, [8]).use.weights

    layers = sum(shape[0] * shape[1] for shape in ((4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072)))
    assert weights() - weights(decode_chain=False) == 4 * 2 * layers
    assert weights(cuda_dtype="float16") == weights(decode_chain=False)
