"""Keys and values of 8 bits: torch's codes are core's bit for bit, Triton's are torch's, and attention reads both."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed, and the backend's kernels take its tensors")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from cacheir.ir.types import KVType  # noqa: E402
from cacheir.reference.kv_storage import KVStorage  # noqa: E402
from cacheir_cuda.kernels import attention  # noqa: E402
from cacheir_cuda.kv_codes import decode, encode  # noqa: E402
from cacheir_cuda.pool import Pool  # noqa: E402

CPU = torch.device("cpu")
KINDS = ("int8", "fp8")


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), dim=st.integers(1, 70), exponent=st.integers(-30, 30), zeros=st.booleans())
def test_torch_s_numbers_are_core_s(kind: str, seed: int, dim: int, exponent: int, zeros: bool) -> None:
    random = np.random.default_rng(seed)
    x = (random.standard_normal((5, dim)) * 2.0**exponent).astype(np.float32)
    x[0] = 0 if zeros else np.round(x[0] / 2.0**exponent) * np.float32(2.0**exponent)  # ties, and rows of zeros
    storage = KVStorage(kind)
    assert np.array_equal(decode(*encode(torch.from_numpy(x), kind)).numpy(), storage.decode(storage.encode(x)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_so_for_its_token_and_head_alone(kind: str, bad: float) -> None:
    x = torch.ones(3, 2, 8)
    x[1, 0, 5] = bad
    made, sound = decode(*encode(x, kind)), decode(*encode(torch.ones(3, 2, 8), kind))
    assert not made[1, 0].isfinite().all()
    made[1, 0] = sound[1, 0]
    assert torch.equal(made, sound)


def pools(kind: str, count: int = 2) -> list[Pool]:
    return [Pool(KVType(layers=2, heads=2, head_dim=24, dtype="f32"), [0, 1], 12, 4, CPU, kind) for _ in range(count)]


@pytest.mark.parametrize("kind", KINDS)
def test_pages_are_copied_and_written_with_their_scales(kind: str) -> None:
    (pool,) = pools(kind, 1)
    data = np.random.default_rng(1).standard_normal((2, 2, 2, 2, 4, 24)).astype(np.float32)
    pool.write_pages([3, 5], data)
    pool.copy_pages([(3, 7)])
    read = pool.read_pages([3, 5, 7])
    assert np.abs(read[:2] - data).max() < 0.08 * np.abs(data).max() and np.array_equal(read[0], read[2])
    pool.write_pages([1, 2, 4], read)  # what was spilled comes back as it was
    assert np.array_equal(pool.read_pages([1, 2, 4]), read)
    assert pool.nbytes == 13 * 2 * 2 * 2 * 4 * (24 + 4)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("kind", KINDS)
def test_triton_stores_what_torch_does(kind: str) -> None:
    from cacheir_cuda.kernels import triton_block, triton_rows

    one, other = pools(kind)
    random = np.random.default_rng(2)
    k, v = (torch.from_numpy(random.standard_normal((7, 2, 24)).astype(np.float32)) for _ in range(2))
    k[2], v[3, 1] = 0, 1e-4
    slots = torch.tensor([9, 40, 3, -1, 22, 17, 0], dtype=torch.int32)
    attention.kv_append(one, k, v, slots, layer=1)
    triton_rows.kv_append(other, k, v, slots, layer=1)
    same(one, other)
    # Behind a product of q, k and v: cos 1 and sin 0 turn nothing.
    qkv = torch.cat([torch.zeros(7, 4 * 24), k.flatten(1), v.flatten(1)], dim=1)[None]
    cos, sin, q = torch.ones(7, 12), torch.zeros(7, 12), torch.empty(7, 4, 24, dtype=torch.float16)
    (third,) = pools(kind, 1)
    triton_block.after_qkv(qkv, None, None, cos, sin, slots, third, layer=1, eps=0, layout="half", q=q)
    same(one, third)


def same(one: Pool, other: Pool) -> None:
    """Equal but for the page of nobody."""
    assert np.array_equal(one.read_pages(range(12)), other.read_pages(range(12)))
    assert one.read_pages([0])[0, 1].any()


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("kind", KINDS)
def test_triton_attends_to_codes_as_torch_does(kind: str) -> None:
    """Ragged prompts, then their last tokens alone; q in float32 and, as blocks hand it over, in float16."""
    from cacheir_cuda.kernels import triton_attention, triton_paged

    (pool,) = pools(kind, 1)
    random = np.random.default_rng(3)
    pages, lengths = random.permutation(12), (21, 9)
    table = torch.from_numpy(np.stack([pages[:6], pages[6:]]).astype(np.int32))
    for row, length in enumerate(lengths):
        k, v = (torch.from_numpy(random.standard_normal((length, 2, 24)).astype(np.float32)) for _ in range(2))
        slots = torch.tensor([table[row, i // 4] * 4 + i % 4 for i in range(length)], dtype=torch.int32)
        attention.kv_append(pool, k, v, slots, layer=0)
    starts = torch.tensor([0, 21, 30], dtype=torch.int32)
    at = torch.cat([torch.arange(length, dtype=torch.int32) for length in lengths])
    q = torch.from_numpy(random.standard_normal((30, 4, 24)).astype(np.float32))
    named = {"layer": 0, "scale": 0.2, "window": 0, "softcap": 5.0}
    counts = torch.tensor(lengths, dtype=torch.int32)
    expected, found = torch.empty_like(q), torch.empty_like(q)
    attention.paged_attention_prefill(q, pool, table, starts, at, counts, **named, out=expected)
    triton_paged.prefill(q, pool, table, starts, at, **named, out=found)
    near(found, expected, 1e-5)
    triton_paged.prefill(q.half(), pool, table, starts, at, **named, out=found)
    near(found, expected, 3e-3)
    last = torch.tensor([20, 29])
    for kernel, bound in ((triton_attention.paged_attention_decode, 1e-5), (triton_paged.decode, 3e-3)):
        single = torch.empty(2, 4, 24)
        if kernel is triton_paged.decode:
            kernel(q[last].half(), pool, table, at[last], **named, out=single)
        else:
            kernel(q[last], pool, table, at[last], counts, **named, out=single)
        near(single, expected[last], bound)


def near(found: torch.Tensor, expected: torch.Tensor, bound: float) -> None:
    assert (found - expected).abs().max() < bound * expected.abs().max()
