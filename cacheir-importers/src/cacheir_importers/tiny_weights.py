"""Random weights for a tiny model, large enough that any mistake in the maths changes its tokens.

With the usual weights of standard deviation 0.02 and a tied head, a model without RoPE, or with another map of
key/value heads, picks the same greedy tokens as the right one. Here queries and keys are large enough that attention is
sharp and turns with position, and the head is wide enough that the best token leads clearly.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import numpy as np

from cacheir.models.decoder_spec import DecoderSpec
from cacheir.models.weight_shapes import weight_shapes
from cacheir_importers.tiny_tokenizer import EOS_ID

_ROWS = re.compile(r"(.+)\[(\d+):(\d+)\]")


def random_weights(spec: DecoderSpec, names: Mapping[str, str], seed: int) -> dict[str, np.ndarray]:
    """float32 tensors by their names in a file; tensors whose rows are named are put together."""
    # The old generator: its stream is frozen, so that a seed means one model in every version of NumPy.
    random = np.random.RandomState(seed)
    shapes, tensors = weight_shapes(spec), {}
    rows: dict[str, dict[int, np.ndarray]] = {}
    for key in spec.weight_keys():
        values = _values(key.rpartition("layers.")[2].partition(".")[2] or key, shapes[key], spec, random)
        named = _ROWS.fullmatch(names[key])
        if named:
            rows.setdefault(named.group(1), {})[int(named.group(2))] = values
        else:
            tensors[names[key]] = values
    for name, parts in rows.items():
        tensors[name] = np.concatenate([parts[first] for first in sorted(parts)])
    return tensors


def _values(part: str, shape: tuple[int, ...], spec: DecoderSpec, random: np.random.RandomState) -> np.ndarray:
    if part.endswith("norm"):
        low, high = (0.5, 1.5) if not part.endswith("post_norm") else (1.0, 2.0)
        values = random.uniform(low, high, shape[0]) - spec.norm_offset
        return np.asarray(values.astype(np.float32))
    normal = random.standard_normal(shape) * _deviation(part, shape, spec)
    tensor: np.ndarray = normal.astype(np.float32)
    if part == "head":
        tensor[EOS_ID] = 0.0  # or most greedy runs would end after a few tokens
    return tensor


def _deviation(part: str, shape: tuple[int, ...], spec: DecoderSpec) -> float:
    if part in ("embed", "head"):
        return 1.0 / spec.embedding_scale if part == "embed" else 1.0
    if part.endswith("_bias"):
        return 1.0
    unit = 1 / math.sqrt(shape[-1])  # what keeps the size of a normalised vector
    if part in ("attn.q", "attn.k"):
        return 1.4 * unit
    if part == "ffn.router":
        return 2.0 * unit
    return (1.2 if part.endswith("down") else 1.0) * unit
