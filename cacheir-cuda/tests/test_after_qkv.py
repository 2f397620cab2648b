"""What follows QKV in a block, beside a formula: biases, norms of q and k by head, rotation, append; on a GPU too."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed, and the kernel takes its tensors")
pytest.importorskip("triton", reason="Triton is not installed")

from cacheir.ir.types import KVType  # noqa: E402
from cacheir_cuda.kernels import triton_turned  # noqa: E402
from cacheir_cuda.kernels.triton_block import after_qkv  # noqa: E402
from cacheir_cuda.pool import Pool  # noqa: E402

DEVICE = torch.device(os.environ.get("CACHEIR_TEST_DEVICE", "cpu"))
pytestmark = pytest.mark.usefixtures(*(() if DEVICE.type == "cuda" else ("interpreted",)))


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "half", "parts", "normed", "biased"),
    [
        (16, 8, 128, 64, 2, True, False),
        (6, 2, 24, 8, 1, True, True),
        (3, 1, 40, 20, 3, False, True),
        (12, 2, 64, 32, 1, False, True),
        (3, 1, 32, 16, 1, True, False),
    ],
)
def test_q_is_turned_and_keys_and_values_are_appended(
    heads: int, kv_heads: int, dim: int, half: int, parts: int, normed: bool, biased: bool, layout: str
) -> None:
    """A token of padding (slot -1) leaves every page but that of nobody alone."""
    chance, tokens, page_tokens, eps = np.random.default_rng(7), 5, 4, 1e-6
    width = (heads + 2 * kv_heads) * dim

    def draw(*shape: int) -> np.ndarray[Any, Any]:
        return chance.standard_normal(shape).astype(np.float32)

    given, bias, norms, angles = draw(parts, tokens, width), draw(width), draw(2, dim), draw(tokens, half)
    slots = np.array([9, 0, -1, 3, 4], np.int32)
    pool = Pool(KVType(layers=1, heads=kv_heads, head_dim=dim, dtype="f32"), [0], 3, page_tokens, DEVICE)
    pool.storage.fill_(7.0)
    q = torch.full((tokens, heads, dim), torch.nan, device=DEVICE)
    tensors = [torch.from_numpy(a).to(DEVICE) for a in (given, bias, *norms, np.cos(angles), np.sin(angles), slots)]
    parts_, bias_, q_norm, k_norm, cos, sin, slots_ = tensors
    rest = (bias_ if biased else None, (q_norm, k_norm) if normed else None, cos, sin, slots_, pool)
    own = torch.full((2, kv_heads, tokens, dim), torch.nan, device=DEVICE)
    after_qkv(parts_, *rest, layer=0, eps=eps, layout=layout, q=q, own=own)
    if parts == 1 and triton_turned.takes(cos, dim, layout, pool):
        again, again_own, before = torch.full_like(q, torch.nan), torch.full_like(own, torch.nan), pool.storage.clone()
        pool.storage.fill_(7.0)
        triton_turned.after_qkv_many(parts_[0], *rest, layer=0, eps=eps, q=again, own=again_own)
        for found, by_other in ((again, q), (again_own, own), (pool.storage, before)):
            assert torch.allclose(found, by_other, rtol=1e-5, atol=1e-6)
    else:
        assert parts > 1 or dim != 2 * half or half < 16 or layout != "half"
    made = (given.astype(np.float64).sum(0) + (bias if biased else 0)).reshape(tokens, -1, dim)
    expected = list(np.split(made, [heads, heads + kv_heads], axis=1))
    first = np.arange(half) if layout == "half" else 2 * np.arange(half)
    second = first + (half if layout == "half" else 1)
    c, s = (function(angles.astype(np.float64))[:, None] for function in (np.cos, np.sin))
    for number in (0, 1):
        part = expected[number]
        if normed:
            part = part / np.sqrt((part**2).mean(-1, keepdims=True) + eps) * norms[number]
        a, b = part[..., first].copy(), part[..., second].copy()
        part[..., first], part[..., second] = a * c - b * s, b * c + a * s
        expected[number] = part
    assert np.abs(q.double().cpu().numpy() - expected[0]).max() < 1e-5 * np.abs(expected[0]).max()
    pages = pool.storage[0, :3].double().cpu().numpy()
    wanted = np.full_like(pages, 7.0)
    for token, slot in enumerate(slots):
        if slot >= 0:
            for which in (0, 1):
                wanted[slot // page_tokens, which, :, slot % page_tokens] = expected[1 + which][token]
    for which in (0, 1):
        found = own[which].transpose(0, 1).double().cpu().numpy()
        assert np.abs(found - expected[1 + which]).max() < 1e-5 * np.abs(expected[1 + which]).max()
    assert np.abs(pages - wanted).max() < 1e-5 * np.abs(wanted).max()
