"""The logical module's numbers against the formulas of the papers, written out in float64 and knowing no IR."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cacheir.formats.quant_array import QuantArray
from cacheir.models.decoder_spec import DecoderSpec, LayerSpec, RopeSpec
from cacheir.ops.table import core_ops
from cacheir.reference.interpreter import interpret
from cacheir.testing.random_runs import RandomWeights
from cacheir.testing.tiny_decoders import TinyDecoder, tiny_decoders

OPS = core_ops()
Array = np.ndarray[Any, Any]
LENGTHS = (9, 1, 6)


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def turned(x: Array, rope: RopeSpec) -> Array:
    """x [T, heads, D] with each pair turned by position times its frequency."""
    out = x.copy()
    for pair in range(rope.dims // 2):
        factor = rope.factors[pair] if rope.factors else 1.0
        angle = np.arange(len(x)) * rope.theta ** (-2 * pair / rope.dims) / factor
        first, second = (pair, pair + rope.dims // 2) if rope.layout == "half" else (2 * pair, 2 * pair + 1)
        a, b = x[:, :, first].copy(), x[:, :, second].copy()
        cos, sin = (rope.magnitude * turn(angle)[:, None] for turn in (np.cos, np.sin))
        out[:, :, first], out[:, :, second] = a * cos - b * sin, b * cos + a * sin
    return out


def attention(q: Array, k: Array, v: Array, layer: LayerSpec) -> Array:
    out = np.zeros_like(q)
    scale = layer.attention_scale or layer.head_dim**-0.5
    for head in range(layer.heads):
        shared = head // (layer.heads // layer.kv_heads)
        for token in range(len(q)):
            first = max(0, token + 1 - layer.window) if layer.window else 0
            scores = k[first : token + 1, shared] @ q[token, head] * scale
            weights = np.exp(scores - scores.max())
            out[token, head] = weights / weights.sum() @ v[first : token + 1, shared]
    return out


def decoder_logits(spec: DecoderSpec, weight: Callable[[str], Array | None], tokens: Array) -> Array:
    """Logits [T, V] of one row in float64; ``weight`` gives None for a bias that there is not."""

    def linear(x: Array, key: str) -> Array:
        matrix, bias = weight(key), weight(f"{key}_bias")
        assert matrix is not None
        return x @ matrix.T + (0.0 if bias is None else bias)

    h = weight("embed")[tokens]  # type: ignore[index]
    for number, layer in enumerate(spec.layers):
        at = f"layers.{number}"
        x = rms_norm(h, weight(f"{at}.attn_norm"), spec.norm_eps)  # type: ignore[arg-type]
        q, k, v = (
            linear(x, f"{at}.attn.{part}").reshape(len(tokens), heads, layer.head_dim)
            for part, heads in (("q", layer.heads), ("k", layer.kv_heads), ("v", layer.kv_heads))
        )
        if layer.rope is not None:
            q, k = turned(q, layer.rope), turned(k, layer.rope)
        h = h + linear(attention(q, k, v, layer).reshape(len(tokens), -1), f"{at}.attn.o")
        x = rms_norm(h, weight(f"{at}.ffn_norm"), spec.norm_eps)  # type: ignore[arg-type]
        gate = linear(x, f"{at}.ffn.gate")
        h = h + linear(gate / (1 + np.exp(-gate)) * linear(x, f"{at}.ffn.up"), f"{at}.ffn.down")
    h = rms_norm(h, weight("norm"), spec.norm_eps)  # type: ignore[arg-type]
    if spec.tied_head:
        return h @ weight("embed").T  # type: ignore[union-attr]
    return linear(h, "head")


def both(decoder: TinyDecoder, oracle: DecoderSpec | None = None) -> tuple[Array, Array]:
    """Logits of a ragged batch by the logical module and by the formulas of ``oracle``."""
    module = decoder.logical(OPS)
    stored = RandomWeights(module, seed=3)

    def weight(key: str) -> Array | None:
        if key not in decoder.weights:
            return None
        data = stored(key)
        return np.asarray(data.dense() if isinstance(data, QuantArray) else data, np.float64)

    rng = np.random.default_rng(5)
    rows = [rng.integers(0, decoder.spec.vocab_size, length, dtype=np.int32) for length in LENGTHS]
    inputs = {
        "tokens": np.concatenate(rows),
        "positions": np.concatenate([np.arange(length, dtype=np.int32) for length in LENGTHS]),
        "row_starts": np.cumsum([0, *LENGTHS], dtype=np.int32),
    }
    (hidden,) = interpret(module, OPS, stored, inputs)
    (logits,) = interpret(module, OPS, stored, [hidden], graph="head.logits")
    expected = [decoder_logits(oracle or decoder.spec, weight, row) for row in rows]
    return logits, np.concatenate(expected)


def worst(decoder: TinyDecoder, oracle: DecoderSpec | None = None) -> float:
    """The largest difference, relative to the largest logit."""
    logits, expected = both(decoder, oracle)
    return float(np.abs(logits - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("name", sorted(tiny_decoders()))
def test_logits_follow_the_formulas(name: str) -> None:
    assert worst(tiny_decoders()[name]) < 2e-5


def other_layers(**fields: Any) -> Callable[[DecoderSpec], DecoderSpec]:
    return lambda spec: replace(spec, layers=tuple(replace(layer, **fields) for layer in spec.layers))


def other_rope(**fields: Any) -> Callable[[DecoderSpec], DecoderSpec]:
    return lambda spec: replace(
        spec,
        layers=tuple(
            replace(layer, rope=None if layer.rope is None else replace(layer.rope, **fields)) for layer in spec.layers
        ),
    )


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("grouped", other_layers(rope=None)),
        ("grouped", other_rope(layout="interleaved")),
        ("grouped", other_rope(theta=20000.0)),
        ("two-classes-window", other_rope(factors=())),
        ("two-classes-window", other_rope(magnitude=1.0)),
        ("two-classes-window", other_layers(window=0)),
        ("interleaved-biased", other_rope(layout="half")),
        ("grouped", other_layers(attention_scale=0.5)),
        ("grouped", lambda spec: replace(spec, norm_eps=1e-3)),
    ],
)
def test_the_comparison_sees_each_mistake(name: str, wrong: Callable[[DecoderSpec], DecoderSpec]) -> None:
    decoder = tiny_decoders()[name]
    assert worst(decoder, wrong(decoder.spec)) > 1e-3


def test_the_comparison_sees_a_wrong_map_of_key_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    right = attention

    def wrong(q: Array, k: Array, v: Array, layer: LayerSpec) -> Array:
        order = [head % layer.kv_heads for head in range(layer.heads)]
        return right(q, k[:, order], v[:, order], replace(layer, kv_heads=layer.heads))

    monkeypatch.setitem(globals(), "attention", wrong)
    assert worst(tiny_decoders()["grouped"]) > 1e-3
