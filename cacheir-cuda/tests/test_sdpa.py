"""PyTorch's SDPA as a kernel: taken where nothing better runs and it can, refused with a reason where it cannot."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed, and the kernel is torch's")

from cacheir.artifact.card import CompileOptions  # noqa: E402
from cacheir.errors import UsageError  # noqa: E402
from cacheir.ir.types import KVType  # noqa: E402
from cacheir.schedule.flatten import flatten  # noqa: E402
from cacheir.testing.hosts import plugin_host  # noqa: E402
from cacheir.testing.tiny_programs import TinyProgram  # noqa: E402
from cacheir_cuda.kernels.attention import paged_attention_prefill_sdpa  # noqa: E402
from cacheir_cuda.pool import Pool  # noqa: E402

OP = "paged_attention_prefill"
SDPA = f"cuda.torch.{OP}_sdpa"
CPU = torch.device("cpu")


def chosen(options: CompileOptions, decoder: str = "grouped") -> set[str]:
    """The kernels that prompts' attention got, in all layers."""
    program = TinyProgram(decoder, plugin_host("cacheir_cuda.plugin"), options).program
    launches = [launch for launch in flatten(program, "prefill", "main") if launch.op.name == OP]
    return {choice.kernel for launch in launches for choice in launch.choices}


def test_it_is_taken_where_it_can_run_and_says_why_it_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHEIR_CUDA_DEVICE", "cpu")
    assert chosen(CompileOptions(target="cuda")) == {SDPA}
    assert chosen(CompileOptions(target="cuda"), "two-classes-window") == {SDPA, f"cuda.torch.{OP}"}
    with pytest.raises(UsageError, match="SDPA is given no window"):
        chosen(CompileOptions(target="cuda", kernels={OP: SDPA}), "two-classes-window")


def test_forced_it_runs_instead_of_tritons(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert chosen(CompileOptions(target="cuda")) != {SDPA}
    assert chosen(CompileOptions(target="cuda", kernels={OP: SDPA})) == {SDPA}


@pytest.mark.parametrize(("kept", "bound"), [("f32", 1e-5), ("bf16", 6e-2)])
def test_ragged_rows_over_pages(kept: str, bound: float) -> None:
    """Whole prompts, a prompt's later chunk and a row without tokens, beside the formula in float64."""
    heads, kv_heads, dim, page_tokens = 6, 2, 16, 4
    random = np.random.default_rng()
    lengths = [int(random.integers(1, 20)) for _ in range(3)] + [9]
    fresh = [lengths[0], int(random.integers(1, lengths[1] + 1)), 1, 0]
    pool = Pool(KVType(1, kv_heads, dim, kept), [0], 40, page_tokens, CPU)
    pool.storage.fill_(np.nan)
    order, table, at = random.permutation(40), np.zeros((4, 5), np.int32), 0
    starts, positions, known = [0], [], []
    for row, (length, new) in enumerate(zip(lengths, fresh)):
        pages = order[at : at + -(-length // page_tokens)]
        at += len(pages)
        table[row, : len(pages)] = pages
        keys, values = random.standard_normal((2, length, kv_heads, dim)).astype(np.float32)
        slots = [pages[i // page_tokens] * page_tokens + i % page_tokens for i in range(length)]
        pool.append(0, keys, values, np.array(slots, np.int32))
        known.append((keys.astype(np.float64), values.astype(np.float64)))
        starts.append(starts[-1] + new)
        positions += range(length - new, length)
    q = random.standard_normal((starts[-1], heads, dim)).astype(np.float32)
    out = torch.full(q.shape, torch.nan)
    paged_attention_prefill_sdpa(
        torch.from_numpy(q), pool, torch.from_numpy(table), torch.tensor(starts), torch.tensor(positions),
        torch.tensor(lengths), layer=0, scale=0.3, window=0, out=out,
    )  # fmt: skip
    for row, (keys, values) in enumerate(known):
        for token in range(starts[row], starts[row + 1]):
            for head in range(heads):
                seen = positions[token] + 1
                scores = keys[:seen, head // 3] @ q[token, head].astype(np.float64) * 0.3
                weights = np.exp(scores - scores.max())
                expected = weights @ values[:seen, head // 3] / weights.sum()
                assert np.abs(out[token, head].numpy() - expected).max() < bound * np.abs(expected).max() + bound
