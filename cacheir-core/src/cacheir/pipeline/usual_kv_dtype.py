"""How a program keeps keys and values where nobody says."""

from __future__ import annotations

from cacheir.ir.types import TensorType
from cacheir.models.imported import ImportedModel
from cacheir.pipeline.unpack_recipes import imported_weight_types
from cacheir.plugins.ref import resolve
from cacheir.plugins.specs import BackendSpec


def usual_kv_dtype(backend: BackendSpec, model: ImportedModel, *, precise: bool, quant: str) -> str:
    """The backend's default, and f32 where nothing else is rounded: then it would be all that takes bits away.

    ``precise`` and ``quant`` are those of the compile.
    """
    if backend.kv_dtype is None or precise:
        return "f32"
    types = imported_weight_types(model).values()
    if not quant and all(isinstance(kind, TensorType) and kind.dtype == "f32" for kind in types):
        return "f32"
    dtype: str = resolve(backend.kv_dtype)()
    return dtype
