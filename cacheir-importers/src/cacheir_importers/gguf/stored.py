"""The tensors of a GGUF file as rows of the table of weights; a type that cannot be read is refused by its name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from cacheir.errors import UnsupportedModelError
from cacheir.ir.dtypes import is_dtype
from cacheir_importers.family_lookup import installation_of
from cacheir_importers.gguf.package_formats import HINT, NAMES, why_not
from cacheir_importers.gguf.reader import TensorEntry
from cacheir_importers.gguf.tensor_types import TENSOR_TYPES
from cacheir_importers.weight_table import StoredTensor


def readable_formats(options: Mapping[str, Any]) -> Callable[[str], bool]:
    """Whether a format can be read: an element type, or one that an installed plugin registered."""
    formats = installation_of(options).quant_formats
    return lambda name: is_dtype(name) or name in formats


def stored_tensor(file: str, entry: TensorEntry, readable: Callable[[str], bool]) -> StoredTensor:
    """``entry`` of ``file`` as the table of weights has it.

    Raises UnsupportedModelError that names tensor and type, and what would make the type readable.
    """
    kind = TENSOR_TYPES.get(entry.type_id)
    if kind is None or not kind.format or not readable(kind.format):
        said = f"{file}: tensor {entry.name!r} is stored as {entry.type_name}"
        if kind is not None and kind.format in NAMES:
            raise UnsupportedModelError(f"{said}, which is read through the gguf package: {why_not()}", hint=HINT)
        known = [each.name for each in TENSOR_TYPES.values() if each.format and readable(each.format)]
        raise UnsupportedModelError(
            f"{said}, which is not supported; supported: {', '.join(known)}",
            hint="requantise the model: llama-quantize --allow-requantize OLD NEW Q8_0",
        )
    return StoredTensor(
        file=file,
        name=entry.name,
        offset=entry.offset,
        nbytes=entry.nbytes or 0,
        type_name=entry.type_name,
        format=kind.format,
        shape=entry.shape,
    )


def refuse_scales(names: Iterable[str], needed: Collection[str], file: str) -> None:
    """Refuse a file that keeps a factor of a needed tensor beside it: leaving it out would give wrong numbers.

    llama.cpp multiplies ``blk.0.attn_q.weight`` by ``blk.0.attn_q.scale``, which NVFP4 and BitNet files have.
    """
    for name in names:
        base, dot, end = name.rpartition(".")
        if dot and end in ("scale", "input_scale") and f"{base}.weight" in needed:
            raise UnsupportedModelError(
                f"{file}: tensor {name!r} is a factor of {base + '.weight'!r}, which is not supported",
                hint="requantise the model into a type without such factors",
            )
