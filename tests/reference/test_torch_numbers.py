"""The definitions beside torch and transformers, with which models are made: rope, norms, attention, rounding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding, apply_rotary_pos_emb

from cacheir.reference.bf16 import from_bf16, to_bf16
from cacheir.testing.interpreter import evaluate

RNG = np.random.default_rng(42)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def config(theta: float, dims: int) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=dims * 2,
        num_attention_heads=2,
        num_key_value_heads=2,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
        rope_theta=theta,
    )


@pytest.mark.parametrize("theta", [10000.0, 100000.0, 500000.0])
@pytest.mark.parametrize("dims", [64, 128])
def test_rope_tables_are_those_of_transformers(theta: float, dims: int) -> None:
    positions = np.arange(0, 8192, 61, dtype=np.int32)
    module = LlamaRotaryEmbedding(config(theta, dims))
    cos, sin = module(torch.zeros(1), torch.from_numpy(positions)[None].long())
    found = evaluate("rope_table", positions, theta=theta, dims=dims)
    for ours, theirs in zip(found, (cos, sin)):
        # Their frequencies may be one unit of float32 away, which position 8192 makes 8192 times larger.
        np.testing.assert_allclose(ours, theirs[0, :, : dims // 2].numpy(), rtol=0, atol=1e-6)


def test_rope_turns_as_transformers_does() -> None:
    q, positions = normal(9, 2, 64), np.arange(9, dtype=np.int32)
    module = LlamaRotaryEmbedding(config(10000.0, 64))
    heads_first = torch.from_numpy(q).transpose(0, 1)[None]
    cos, sin = module(heads_first, torch.from_numpy(positions)[None].long())
    theirs, _ = apply_rotary_pos_emb(heads_first, heads_first, cos, sin)
    ours = evaluate("rope", q, *evaluate("rope_table", positions, dims=64), layout="half")
    np.testing.assert_allclose(ours, theirs[0].transpose(0, 1).numpy(), rtol=0, atol=2e-6)


def test_rms_norm_is_that_of_transformers() -> None:
    x, weight = normal(5, 64), normal(64)
    module = LlamaRMSNorm(64, eps=1e-5)
    with torch.no_grad():
        module.weight.copy_(torch.from_numpy(weight))
        theirs = module(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(evaluate("rms_norm", x, weight, eps=1e-5), theirs, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("window", [0, 3])
def test_attention_is_torchs(window: int) -> None:
    q, k, v = normal(7, 6, 16), normal(7, 2, 16), normal(7, 2, 16)
    distance = torch.arange(7)[:, None] - torch.arange(7)[None]
    mask = (distance >= 0) & (distance < (window or 7))
    q4, k4, v4 = (torch.from_numpy(part).transpose(0, 1)[None] for part in (q, k, v))
    theirs = torch.nn.functional.scaled_dot_product_attention(q4, k4, v4, attn_mask=mask, enable_gqa=True)
    positions, starts = np.arange(7, dtype=np.int32), np.array([0, 7], np.int32)
    ours = evaluate("grouped_query_attention", q, k, v, positions, starts, scale=0.25, window=window)
    np.testing.assert_allclose(ours, theirs[0].transpose(0, 1).numpy(), rtol=1e-5, atol=2e-6)


def test_bf16_rounds_as_torch_does() -> None:
    bits = RNG.integers(0, 2**32, 100_000, dtype=np.uint32)
    bits = bits[~np.isnan(bits.view(np.float32))]
    theirs = torch.from_numpy(bits.view(np.float32)).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(to_bf16(bits.view(np.float32)), theirs)
    back = torch.from_numpy(theirs.view(np.int16)).view(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(from_bf16(theirs), back)
