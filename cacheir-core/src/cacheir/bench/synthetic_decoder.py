"""A decoder with made-up weights, as large as a small model, that kernels are timed on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cacheir.ir.dtypes import is_dtype, numpy_dtype
from cacheir.models.decoder_spec import DecoderSpec, LayerSpec, RopeSpec
from cacheir.models.imported import ImportedModel, WeightSource
from cacheir.models.weight_shapes import weight_shapes
from cacheir.plugins.specs import QuantFormatSpec
from cacheir.weights.sources import stored_bytes

if TYPE_CHECKING:
    import numpy as np

HEAD_DIM, VOCABULARY, MAX_POSITIONS = 64, 16384, 4096
_PATTERN = 4096  # elements that repeat in every weight


@dataclass(frozen=True, kw_only=True)
class SyntheticSize:
    """``layers`` of ``hidden`` elements a token; the feed-forward part is three times as wide."""

    hidden: int
    layers: int


def synthetic_spec(size: SyntheticSize) -> DecoderSpec:
    """A decoder of the common kind: grouped heads, rotary positions, tied embedding, no biases."""
    heads = size.hidden // HEAD_DIM
    layer = LayerSpec(
        heads=heads,
        kv_heads=max(1, heads // 4),
        head_dim=HEAD_DIM,
        feed_forward=3 * size.hidden,
        rope=RopeSpec(theta=10000.0, dims=HEAD_DIM),
    )
    return DecoderSpec(
        family="llama",
        label="synthetic",
        vocab_size=VOCABULARY,
        hidden=size.hidden,
        max_positions=MAX_POSITIONS,
        norm_eps=1e-5,
        layers=(layer,) * size.layers,
        tied_head=True,
    )


def write_synthetic(
    folder: Path, size: SyntheticSize, format: str, formats: Mapping[str, QuantFormatSpec]
) -> ImportedModel:
    """The decoder with matrices stored as ``format`` (an element type or a block format that can be packed), its
    weights in a file of ``folder``.
    """
    import numpy as np

    spec = synthetic_spec(size)
    shapes = weight_shapes(spec)
    small = np.random.default_rng(0).uniform(-0.03, 0.03, _PATTERN).astype(np.float32)
    matrix, vector = _stored(small, format, formats), np.ones(_PATTERN, np.float32).tobytes()
    file, sources, offset = folder / f"{format}-{size.hidden}.weights", {}, 0
    with file.open("wb") as out:
        for key in spec.weight_keys():
            shape = shapes[key]
            kind, pattern = (format, matrix) if len(shape) == 2 else ("f32", vector)
            nbytes = stored_bytes(kind, shape, formats, key)
            out.write((pattern * -(-nbytes // len(pattern)))[:nbytes])
            sources[key] = WeightSource(
                file=file.name, tensor=key, offset=offset, nbytes=nbytes, format=kind, shape=shape
            )
            offset += nbytes
    return ImportedModel(
        root=folder, files=(file.name,), importer="synthetic", header_hash="0" * 64, sources=sources, spec=spec
    )


def synthetic_layers(hidden: int, bits_per_weight: float, nbytes: int) -> int:
    """How many layers of ``hidden`` elements take about ``nbytes`` in a format of so many bits."""
    kv_heads = max(1, hidden // HEAD_DIM // 4)
    weights = hidden * (2 * hidden + 2 * kv_heads * HEAD_DIM + 9 * hidden)
    return max(1, round(nbytes / (weights * bits_per_weight / 8)))


def _stored(values: np.ndarray, format: str, formats: Mapping[str, QuantFormatSpec]) -> bytes:
    """f32 [n] as ``format`` stores them."""
    import numpy as np

    from cacheir.formats.quant_array import QuantArray
    from cacheir.reference.bf16 import to_bf16

    if format == "bf16":
        return to_bf16(values).tobytes()
    if is_dtype(format):
        return values.astype(numpy_dtype(format)).tobytes()
    return np.ascontiguousarray(QuantArray.quantize(values[None], formats[format]).blocks).tobytes()
