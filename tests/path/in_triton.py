"""A child of the tests, since TRITON_INTERPRET counts when a kernel is defined: errors beside float64, as JSON."""

from __future__ import annotations

import json

import numpy as np
import torch

from cacheir.ir.types import KVType
from cacheir_cuda.kernels import triton_paged, triton_tiles
from cacheir_cuda.pool import Pool


def split_k() -> tuple[int, float]:
    """Over how many programs K is split for a narrow matrix, and how far the sum of the parts is from the product."""
    random = np.random.default_rng(1)
    x, weight = (torch.from_numpy(random.standard_normal(shape)).half() for shape in ((1, 1024), (64, 1024)))
    parts = triton_tiles.parts_of(*weight.shape)
    out = torch.full((parts, 1, 64), torch.nan)
    triton_tiles.product_parts(x, weight, out)
    expected = x.double().numpy() @ weight.double().numpy().T
    return parts, float(np.abs(out.sum(0).numpy() - expected).max() / np.abs(expected).max())


def attention() -> float:
    """A prompt of 37 tokens over shuffled pages: how far its last row is from softmax(q k) v."""
    random, tokens, dim = np.random.default_rng(2), 37, 16
    pool = Pool(KVType(layers=1, heads=1, head_dim=dim, dtype="f32"), [0], 12, 4, torch.device("cpu"))
    pages = random.permutation(12)[:10]
    slots = np.array([pages[i // 4] * 4 + i % 4 for i in range(tokens)], np.int32)
    q, k, v = (random.standard_normal((tokens, 1, dim)).astype(np.float32) for _ in range(3))
    pool.append(0, k, v, slots)
    out = torch.zeros(tokens, 1, dim)
    table, starts = torch.from_numpy(pages.astype(np.int32))[None], torch.tensor([0, tokens], dtype=torch.int32)
    at = torch.arange(tokens, dtype=torch.int32)
    named = {"layer": 0, "scale": 0.25, "window": 0, "softcap": 0.0}
    triton_paged.prefill(torch.from_numpy(q), pool, table, starts, at, **named, out=out)
    scores = k[:, 0].astype(np.float64) @ q[-1, 0] * 0.25
    weights = np.exp(scores - scores.max())
    return float(np.abs(out[-1, 0].numpy() - weights @ v[:, 0] / weights.sum()).max())


parts, apart = split_k()
print(json.dumps({"parts": parts, "split_k": apart, "attention": attention()}))
