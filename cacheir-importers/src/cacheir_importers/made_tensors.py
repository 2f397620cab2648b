"""Tensors that a checkpoint does not hold as such: they take part like stored ones and then become recipes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from cacheir.ir.dtypes import dtype_bytes
from cacheir.models.imported import UnpackRecipe, WeightSource
from cacheir_importers.weight_table import StoredTensor

if TYPE_CHECKING:
    from cacheir.ir.graph import Attr


@dataclass(frozen=True, kw_only=True)
class MadeTensor:
    """A dense tensor that the unpacker ``method`` makes of ``parts``; ``attrs`` are what it needs to know besides."""

    name: str
    method: str
    parts: Mapping[str, StoredTensor]
    dtype: str
    shape: tuple[int, ...]
    attrs: Mapping[str, Attr]

    def stand_in(self) -> StoredTensor:
        """A stored tensor of the same type and shape, for the table of weights; it lies nowhere."""
        return StoredTensor(
            file="",
            name=self.name,
            offset=0,
            nbytes=prod(self.shape) * dtype_bytes(self.dtype),
            type_name=self.method,
            format=self.dtype,
            shape=self.shape,
        )


def place_made(
    sources: Mapping[str, WeightSource], made: Mapping[str, MadeTensor]
) -> tuple[dict[str, WeightSource], dict[str, UnpackRecipe]]:
    """``sources`` with the parts of made tensors in place of their stand-ins, and the recipes by canonical key.

    A weight that is some rows of a made tensor has them as the attribute ``rows``.
    """
    placed: dict[str, WeightSource] = {}
    recipes: dict[str, UnpackRecipe] = {}
    for key, source in sources.items():
        tensor = made.get(source.tensor) if not source.file else None
        if tensor is None:
            placed[key] = source
            continue
        attrs = dict(tensor.attrs)
        if source.shape != tensor.shape:
            first = source.offset // (source.nbytes // source.shape[0])
            attrs["rows"] = (first, first + source.shape[0])
        for part, stored in tensor.parts.items():
            placed[f"{key}.{part}"] = WeightSource(
                file=stored.file,
                tensor=stored.name,
                offset=stored.offset,
                nbytes=stored.nbytes,
                format=stored.format,
                shape=stored.shape,
            )
        recipes[key] = UnpackRecipe(
            method=tensor.method,
            parts=tuple(tensor.parts),
            dtype=tensor.dtype,
            shape=source.shape,
            attrs=tuple(sorted(attrs.items())),
        )
    return placed, recipes
