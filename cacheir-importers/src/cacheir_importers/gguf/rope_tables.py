"""The tables of a rotation that a GGUF file stores as tensors: ``rope_freqs`` (Llama 3.1 and later), and the two of
longrope (Phi-3 and Phi-4-mini).

They are part of what the model is, not of its weights, so these few numbers are read. Source: llama.cpp's
``get_rope_factors``, which chooses by the context that it was given; here each sequence has the table of its length.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from cacheir.errors import MalformedModelError, UnsupportedModelError
from cacheir.models.decoder_spec import DecoderSpec, RopeSpec
from cacheir_importers.families.rope_scaling import longrope_factors
from cacheir_importers.fields import Fields
from cacheir_importers.gguf.reader import TensorEntry

_PLAIN, _SHORT, _LONG = "rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"
ROPE_TENSORS = (_PLAIN, _SHORT, _LONG)
Tensors = Mapping[str, tuple[str, TensorEntry]]


def with_rope_tables(
    spec: DecoderSpec, tensors: Tensors, metadata: Fields, root: Path
) -> tuple[DecoderSpec, tuple[tuple[float, ...], ...]]:
    """``spec`` whose layers turn by the stored tables, and these, () where the file has none that changes anything.

    Raises UnsupportedModelError for a table of another type or size and for half of longrope, MalformedModelError for
    numbers that divide nothing.
    """
    rope = spec.layers[0].rope if spec.layers else None
    held = [name for name in ROPE_TENSORS if name in tensors]
    if rope is None or not held:
        _refuse_lost_tables(spec, metadata)
        return spec, ()
    tables = {name: _read(tensors[name], name, rope.dims // 2, root) for name in held}
    if _PLAIN in tables:
        turned = replace(rope, factors=tables[_PLAIN]) if any(factor != 1 for factor in tables[_PLAIN]) else rope
    else:
        missing = [name for name in (_SHORT, _LONG) if name not in tables]
        if missing:
            raise UnsupportedModelError(
                f"{metadata.place} has {held[0]} and not {missing[0]}, the other half of longrope"
            )
        turned = replace(
            rope,
            factors=longrope_factors(rope.theta, rope.dims, tables[_SHORT]),
            long_factors=longrope_factors(rope.theta, rope.dims, tables[_LONG]),
            original=metadata.whole_or(
                f"{spec.label}.rope.scaling.original_context_length", spec.max_positions, least=2
            ),
        )
    if turned == rope:
        return spec, ()
    layers = [replace(layer, rope=layer.rope and _turned(layer.rope, turned)) for layer in spec.layers]
    return replace(spec, layers=tuple(layers)), tuple(tables.values())


def _turned(rope: RopeSpec, turned: RopeSpec) -> RopeSpec:
    return replace(rope, factors=turned.factors, long_factors=turned.long_factors, original=turned.original)


def _refuse_lost_tables(spec: DecoderSpec, metadata: Fields) -> None:
    """A type or a magnitude without tables is of a longrope model whose tables were lost."""
    kind, magnitude = (f"{spec.label}.rope.scaling.{name}" for name in ("type", "attn_factor"))
    said = None
    if metadata.text_or(kind, None) == "longrope":
        said = f"{kind} = longrope"
    elif spec.label == "phi3" and metadata.number_or(magnitude, 1.0) not in (0.0, 1.0):
        said = f"{magnitude} = {metadata.get(magnitude):g}"
    if said:
        raise UnsupportedModelError(f"{metadata.place}: {said} is there, and the tensor {_LONG} is not")


def _read(tensor: tuple[str, TensorEntry], name: str, count: int, root: Path) -> tuple[float, ...]:
    file_name, entry = tensor
    if entry.type_name != "F32" or entry.shape != (count,):
        raise UnsupportedModelError(
            f"{file_name}: {name} is {entry.type_name}{list(entry.shape)}; supported: F32[{count}]"
        )
    with (root / file_name).open("rb") as file:
        file.seek(entry.offset)
        raw = file.read(4 * count)
    factors = struct.unpack(f"<{count}f", raw)
    if not all(0 < factor < 1e9 for factor in factors):
        raise MalformedModelError(f"{file_name}: {name} must hold positive numbers, not {factors}")
    return factors
