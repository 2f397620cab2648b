"""Adapters of other libraries: refused in words where those are missing, right over stand-ins for them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module, invalidate_caches
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed, and adapters hand its tensors on")

from cacheir.artifact.card import CompileOptions  # noqa: E402
from cacheir.errors import UsageError  # noqa: E402
from cacheir.ir.types import KVType  # noqa: E402
from cacheir.plugins import resolve  # noqa: E402
from cacheir.schedule.flatten import flatten  # noqa: E402
from cacheir.testing import tiny_decoders, tiny_programs  # noqa: E402
from cacheir.testing.hosts import plugin_host  # noqa: E402
from cacheir.testing.opened_backend import OpenedBackend  # noqa: E402
from cacheir.testing.tiny_programs import TinyProgram  # noqa: E402
from cacheir_cuda import options, plugin  # noqa: E402
from cacheir_cuda.adapters import flash_attention, libraries  # noqa: E402
from cacheir_cuda.pool import Pool  # noqa: E402

IDS = [7, 3, 11, 2, 9, 5, 13, 1]
PREFILL, DECODE = "paged_attention_prefill", "paged_attention_decode"
ADAPTERS = {
    "cuda.adapter.flash_attention_prefill": (PREFILL, "FlashAttention is not installed (pip install flash-attn)"),
    "cuda.adapter.flash_attention_vllm_prefill": (PREFILL, "vLLM's FlashAttention is not installed"),
    "cuda.adapter.flashinfer_prefill": (PREFILL, "FlashInfer is not installed (pip install flashinfer-python)"),
    "cuda.adapter.flashinfer_batch_decode": (DECODE, "FlashInfer is not installed"),
    "cuda.adapter.flashinfer_single_decode": (DECODE, "FlashInfer is not installed"),
    "cuda.adapter.flash_attention_vllm_decode": (DECODE, "CACHEIR_EXPERIMENTAL_PAGED_BATCH_DECODE=1 switches on"),
}
# What each library's documentation says of the functions that are called, by a loop over rows in float64.
STAND_IN = '''
import torch

def _attend(q, k, v, scale, window, softcap):
    """q [Q, N, D] is the end of k, v [S, K, D]."""
    assert q.dtype == k.dtype == v.dtype in (torch.float16, torch.bfloat16) and k.stride(-1) == 1
    group = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    scores = torch.einsum("qnd,snd->nqs", q.double(), k) * scale
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    at = torch.arange(len(k))
    last = torch.arange(len(k) - len(q), len(k))[:, None]
    seen = (at <= last) & ((at >= last - window) if window >= 0 else True)
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return torch.einsum("nqs,snd->qnd", weights, v).to(q.dtype)

def _paged(cache, pages, count):
    """cache [pages, P, K, D] -> [count, K, D]."""
    return cache[pages.long()].flatten(0, 1)[:count]
'''
FLASH = (
    STAND_IN
    + """
def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
                           softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0):
    assert causal and window_size[1] in (-1, 0) and cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
    bounds, keys = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    assert max(b - a for a, b in zip(bounds, bounds[1:])) == max_seqlen_q and len(k) == keys[-1]
    return torch.cat([_attend(q[a:b], k[c:d], v[c:d], softmax_scale, window_size[0], softcap)
                      for a, b, c, d in zip(bounds, bounds[1:], keys, keys[1:])])
"""
)
VLLM = (
    STAND_IN
    + """
def is_fa_version_supported(version):
    return version == 3

def flash_attn_varlen_func(q, k, v, max_seqlen_q, cu_seqlens_q, max_seqlen_k, cu_seqlens_k=None, seqused_k=None,
                           q_v=None, dropout_p=0.0, softmax_scale=None, causal=False, window_size=None, softcap=0.0,
                           alibi_slopes=None, deterministic=False, return_attn_probs=False, block_table=None,
                           fa_version=2):
    assert fa_version == 3 and causal and cu_seqlens_k is None
    assert k.shape[1] % 16 == 0 and max_seqlen_k == max(seqused_k)
    bounds = cu_seqlens_q.tolist()
    return torch.cat([
        _attend(q[a:b], _paged(k, pages, n), _paged(v, pages, n), softmax_scale, window_size[0], softcap)
        for a, b, n, pages in zip(bounds, bounds[1:], seqused_k.tolist(), block_table)
    ])
"""
)
FLASHINFER = (
    STAND_IN
    + """
def single_decode_with_kv_cache(q, k, v, kv_layout="NHD", sm_scale=None, window_left=-1, logits_soft_cap=None):
    assert kv_layout == "NHD" and q.ndim == 2
    return _attend(q[None], k, v, sm_scale, window_left, logits_soft_cap)[0]

class _Wrapper:
    def __init__(self, float_workspace_buffer, kv_layout="NHD"):
        assert kv_layout == "HND" and float_workspace_buffer.dtype == torch.uint8
        self.plans = 0

    def run(self, q, cache):
        rows = zip(self.queries, self.queries[1:], self.indptr, self.indptr[1:], self.last.tolist())
        made = []
        for a, b, c, d, last in rows:
            count = (d - c - 1) * self.page + last
            k, v = (_paged(part.transpose(1, 2), self.indices[c:d], count) for part in cache.unbind(1))
            made.append(_attend(q[a:b], k, v, *self.scores))
        return torch.cat(made)

    def _keep(self, queries, indptr, indices, last, qo_heads, kv_heads, dim, page, scores):
        self.plans += 1
        assert indptr.dtype == indices.dtype == last.dtype == torch.int32 and qo_heads % kv_heads == 0
        self.queries, self.indptr, self.indices, self.last = queries, indptr.tolist(), indices, last
        self.page, self.scores = page, scores

class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    def plan(self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads, num_kv_heads,
             head_dim_qk, page_size, head_dim_vo=None, custom_mask=None, packed_custom_mask=None, causal=False,
             sm_scale=None, window_left=-1, logits_soft_cap=None, q_data_type="float16", kv_data_type=None):
        assert causal and q_data_type == kv_data_type
        self._keep(qo_indptr.tolist(), paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads,
                   num_kv_heads, head_dim_qk, page_size, (sm_scale, window_left, logits_soft_cap))

class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    def plan(self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size,
             pos_encoding_mode="NONE", window_left=-1, logits_soft_cap=None, q_data_type="float16", kv_data_type=None,
             data_type=None, sm_scale=None):
        assert q_data_type == kv_data_type
        self._keep(list(range(len(last_page_len) + 1)), indptr, indices, last_page_len, num_qo_heads, num_kv_heads,
                   head_dim, page_size, (sm_scale, window_left, logits_soft_cap))
"""
)


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The libraries, by modules that obey their documentation; the compiler believes that a GPU is there."""
    for module, text in {
        "flash_attn": FLASH, "vllm": "", "vllm/vllm_flash_attn": VLLM, "flashinfer": FLASHINFER,
        "flashinfer_jit_cache": "",
    }.items():  # fmt: skip
        folder = tmp_path / module
        folder.mkdir()
        (folder / "__init__.py").write_text(text)
    info = tmp_path / "flash_attn-2.8.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: flash-attn\nVersion: 2.8.3\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv(options.DEVICE_VARIABLE, raising=False)
    monkeypatch.setenv(options.PAGED_DECODE_VARIABLE, "1")
    invalidate_caches()
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] in ("flash_attn", "vllm", "flashinfer")]:
        del sys.modules[name]


def tiny(monkeypatch: pytest.MonkeyPatch, forced: dict[str, str], head_dim: int = 64) -> TinyProgram:
    """Two layers of heads of ``head_dim`` over torch's kernels, and those that are forced."""
    layer = tiny_decoders.tiny_decoders()["grouped"].spec.layers[0]
    sized = replace(layer, head_dim=head_dim, rope=replace(layer.rope, dims=head_dim))
    capped = replace(sized, window=5, attention_softcap=20.0)
    decoder = tiny_decoders._decoder([sized, capped], tied_head=True)
    monkeypatch.setattr(tiny_programs, "tiny_decoders", lambda: {"sized": decoder})
    return TinyProgram("sized", plugin_host("cacheir_cuda.plugin"), CompileOptions(target="cuda", kernels=forced))


@pytest.mark.parametrize("name", [name for name in ADAPTERS if "single" not in name])
def test_an_adapter_computes_what_attention_means(name: str, stand_ins: None, monkeypatch: pytest.MonkeyPatch) -> None:
    op, _ = ADAPTERS[name]
    other = {PREFILL: DECODE, DECODE: PREFILL}[op]
    forced = {op: name, other: f"cuda.torch.{other}"}
    attention_of = {"device": "cpu", "cuda_dtype": "float32", "blocks": False}
    program = tiny(monkeypatch, {**forced, **others()})
    with OpenedBackend(program, page_tokens=16, kv_dtype="f16", extra=attention_of) as opened:
        check(opened)
        if "flashinfer" in name:
            plans = [held.wrapper.plans for pool in opened.executor._pools for held in pool.kept.values()]
            assert plans and all(count == plans[0] for count in plans), "a plan serves all layers of a step"


def others() -> dict[str, str]:
    """Torch's kernels for every op that Triton would take: the interpreter is not asked here."""
    triton = {spec.op for spec in plugin.cacheir_register_kernels() if spec.target == "cuda.triton"}
    torch_ops = {spec.op for spec in plugin.cacheir_register_kernels() if spec.target == "cuda.torch"}
    return {op: f"cuda.torch.{op}" if op in torch_ops else "reference" for op in triton - {PREFILL, DECODE}}


def check(opened: OpenedBackend) -> None:
    """Ragged prompts, a chunk behind what is stored, and two decode rows together."""
    tiny_ = opened.tiny
    for made, count in zip(
        opened.step("prefill", *(opened.row(slot, IDS[:count], want="logits") for slot, count in ((0, 5), (1, 2)))),
        (5, 2),
    ):
        near(made.logits, tiny_.logits(IDS[:count])[-1:])
    near(opened.prefill(1, IDS[2:6], 2)[-1:], tiny_.logits(IDS[:6])[-1:])
    rows = (opened.row(0, IDS[5:6], 5, want="logits"), opened.row(1, IDS[6:7], 6, want="logits"))
    for made, count in zip(opened.step("decode", *rows), (6, 7)):
        near(made.logits, tiny_.logits(IDS[:count])[-1:])


def near(found: Any, expected: Any) -> None:
    assert np.abs(found - expected).max() < 1e-2 * np.abs(expected).max()


def test_flash_attention_gets_a_steps_bounds_once(stand_ins: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host makes them, once for all layers: to ask the device is to wait for it, and no graph may hold that."""
    library = import_module("flash_attn")
    attend, given = library.flash_attn_varlen_func, list[Any]()

    def noted(*operands: Any, **named: Any) -> Any:
        given.append((named["cu_seqlens_q"], named["cu_seqlens_k"]))
        return attend(*operands, **named)

    monkeypatch.setattr(library, "flash_attn_varlen_func", noted)
    monkeypatch.delattr(torch, "unique_consecutive")
    pool = Pool(KVType(layers=2, heads=1, head_dim=64, dtype="bf16"), [0, 1], 3, 16, torch.device("cpu"))
    table, rest = torch.arange(3, dtype=torch.int32).view(3, 1), {"scale": 0.1, "window": 0}

    def step(starts: list[int], lengths: list[int]) -> None:
        q, on_device = torch.randn(starts[-1], 2, 64), torch.tensor([starts[:], [0, *lengths]], dtype=torch.int32)
        for layer in range(2):
            out = torch.empty_like(q)
            flash_attention.prefill(q, pool, table, on_device[0], q, on_device[1, 1:], layer=layer, out=out, **rest)  # type: ignore[arg-type]

    for starts, lengths, queries, keys in (
        ([0, 2, 2, 5], [2, 9, 4], [0, 2, 5], [0, 2, 6]),  # the second row has no tokens
        ([0, 3, 4, 5], [6, 1, 2], [0, 3, 4, 5], [0, 6, 7, 9]),
    ):
        pool.begin_step(starts, lengths)
        step(starts, lengths)
        (first, second), given[:] = given, []
        assert first[0] is second[0] and first[1] is second[1]
        assert [bounds.tolist() for bounds in first] == [queries, keys]
    pool.row_starts = pool.lengths = None  # then nothing says when a step is over
    step([0, 1, 1, 3], [1, 1, 7])
    assert [[bounds.tolist() for bounds in one] for one in given] == [[[0, 1, 3], [0, 1, 8]]] * 2


def test_one_row_by_flashinfer(stand_ins: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(options.PAGED_DECODE_VARIABLE)  # else more rows than one take what it switches on
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # they take Triton's, and none comes
    program = tiny(
        monkeypatch, {DECODE: "cuda.adapter.flashinfer_single_decode", PREFILL: f"cuda.torch.{PREFILL}", **others()}
    )
    launches = [launch for launch in flatten(program.program, "decode", "main") if launch.op.name == DECODE]
    assert {launch.choice(1).kernel for launch in launches} == {"cuda.adapter.flashinfer_single_decode"}
    assert {"takes at most 1 rows" in launch.choice(3).reason for launch in launches} == {True}
    extra = {"device": "cpu", "cuda_dtype": "float32", "blocks": False}
    with OpenedBackend(program, page_tokens=4, kv_dtype="f16", extra=extra) as opened:
        opened.prefill(0, IDS[:6])
        near(opened.decode(0, IDS[6], 6), program.logits(IDS[:7])[-1:])


@pytest.mark.parametrize(("name", "kv", "page_tokens", "words"), [
    ("flashinfer_batch_decode", "", 16, "keys of 16 bits, and the pages hold f32"),
    ("flash_attention_vllm_decode", "bf16", 24, "a multiple of 16 tokens, not 24"),
])  # fmt: skip
def test_pages_that_an_adapter_cannot_read(
    name: str, kv: str, page_tokens: int, words: str, stand_ins: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tiny(monkeypatch, {DECODE: f"cuda.adapter.{name}", PREFILL: f"cuda.torch.{PREFILL}", **others()})
    with pytest.raises(UsageError, match=words):
        OpenedBackend(program, page_tokens=page_tokens, kv_dtype=kv, extra={"device": "cpu"})


@pytest.mark.parametrize("kv", ["", "int8"])
def test_the_experiment_refuses_other_pages_when_it_is_opened(
    kv: str, stand_ins: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was switched on, not forced: no step is tried that the library could not do."""
    program = tiny(monkeypatch, {PREFILL: f"cuda.torch.{PREFILL}", **others()})
    launches = [launch for launch in flatten(program.program, "decode", "main") if launch.op.name == DECODE]
    assert {launch.choice(1).kernel for launch in launches} == {"cuda.adapter.flash_attention_vllm_decode"}
    with pytest.raises(UsageError, match=f"keys of 16 bits, and the pages hold {kv or 'f32'}") as caught:
        OpenedBackend(program, page_tokens=16, kv_dtype=kv, extra={"device": "cpu"})
    assert "--kv-dtype bf16" in caught.value.hint


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_missing_library_is_the_reason(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(options.DEVICE_VARIABLE, raising=False)
    monkeypatch.setattr(libraries, "find_spec", lambda module: None)
    op, words = ADAPTERS[name]
    with pytest.raises(UsageError, match="was forced, but") as caught:
        tiny(monkeypatch, {op: name})
    assert words in str(caught.value)


@pytest.mark.parametrize(("name", "dim", "words"), [
    ("flashinfer_batch_decode", 32, "heads are of 32, and FlashInfer has 64, 128, 256"),
    ("flash_attention_vllm_decode", 12, "heads are of 12, and FlashAttention takes multiples of 8"),
])  # fmt: skip
def test_a_head_that_the_library_has_not(
    name: str, dim: int, words: str, stand_ins: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match=words):
        tiny(monkeypatch, {DECODE: f"cuda.adapter.{name}"}, dim)


def test_on_the_processor_no_adapter_runs(stand_ins: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(options.DEVICE_VARIABLE, "cpu")
    with pytest.raises(UsageError, match="FlashInfer runs on a GPU alone"):
        tiny(monkeypatch, {DECODE: "cuda.adapter.flashinfer_batch_decode"})


def test_the_experiment_is_taken_where_it_is_switched_on(stand_ins: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen() -> str:
        launches = flatten(tiny(monkeypatch, {}).program, "decode", "main")
        return next(launch.choice(1).kernel for launch in launches if launch.op.name == DECODE)

    assert chosen() == "cuda.adapter.flash_attention_vllm_decode"
    assert options.choices_text() == "CACHEIR_EXPERIMENTAL_PAGED_BATCH_DECODE=1"
    monkeypatch.setenv(options.PAGED_DECODE_VARIABLE, "0")
    assert chosen().startswith(("cuda.triton.", "cuda.torch."))


def test_the_triton_matmul_is_opt_in(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    monkeypatch.delenv(options.DEVICE_VARIABLE, raising=False)

    def chosen() -> tuple[str, str]:
        launches = flatten(tiny(monkeypatch, {}).program, "prefill", "main")
        launch = next(launch for launch in launches if launch.op.name == "linear")
        return launch.choice(1).kernel, launch.choice(20).kernel

    assert chosen() == ("cuda.triton.linear", "cuda.torch.linear")
    monkeypatch.setenv(options.MATMUL_VARIABLE, "1")
    assert chosen() == ("cuda.triton.linear", "cuda.triton.matmul")


def test_the_doctor_names_version_or_remedy(stand_ins: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def lines() -> dict[str, str]:
        checks = {check.name: resolve(check.run)() for check in plugin.cacheir_register_checks()}
        found = {name: result for name, result in checks.items() if not name.startswith("cuda-")}
        assert all(result.ok for result in found.values())
        return {name: f"{'idle' if result.idle else 'ok'} {result.detail}" for name, result in found.items()}

    found = lines()
    assert found["flash-attention"] == "ok FlashAttention 2.8.3"
    assert found["flashinfer"] == "ok FlashInfer of an unknown version"
    (Path(import_module("flashinfer_jit_cache").__file__ or "")).unlink()
    sys.modules.pop("flashinfer_jit_cache")
    (Path(libraries.find_spec("flashinfer").origin).parents[1] / "flashinfer_jit_cache").rmdir()  # type: ignore[union-attr, arg-type]
    invalidate_caches()
    monkeypatch.setenv("PATH", "")
    alone = lines()["flashinfer"]
    assert alone.startswith("idle ") and "compiles its kernels with nvcc, which is not on the path" in alone
    monkeypatch.setattr(libraries, "find_spec", lambda module: None)
    missing = lines()
    assert missing["flash-attention-vllm"] == "idle vLLM's FlashAttention is not installed (pip install vllm)"
    assert missing["cutlass"] == "idle CUTLASS is not installed (pip install nvidia-cutlass-dsl)"
